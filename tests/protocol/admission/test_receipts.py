"""Invites and renewed secrets: which stand, whom they let in, and who is known to have them."""

from itertools import permutations

import pytest
from msgspec.structs import replace

from gossipdp.protocol.admission import register as module
from gossipdp.protocol.admission.register import DAY
from gossipdp.protocol.admission.statements import NETWORK, SECRET
from gossipdp.protocol.wire.messages import Verdict
from tests.protocol.admission.deciding import STRANGER, ban, decision, invited, received, register, renewed, revoked

A, B, C, KEY = b"a" * 32, b"b" * 32, b"c" * 32, b"k" * 32


def test_invite_lets_in_as_many_hosts_as_it_says__each_as_often_as_it_asks() -> None:
    admission, invite = register(), invited(KEY, uses=2)
    for peer in (A, B, A):
        assert admission.redeem(invite, received(invite, peer), 0.0) == ""
    assert "2 of 2 hosts" in admission.redeem(invite, received(invite, C), 0.0)
    assert admission.holders(KEY) == {A, B} and admission.about(KEY) == invite


@pytest.mark.parametrize(
    ("known", "shown", "time", "why_not"),
    [
        ([], decision(Verdict.INVITED, KEY, operator=STRANGER), 0.0, "has not signed"),
        ([], ban(KEY), 0.0, "has not signed"),
        ([], invited(KEY), 1000.0, "expired"),
        ([revoked(KEY, 2)], invited(KEY), 0.0, "revoked"),
        ([ban(A)], invited(KEY), 0.0, "banned"),
        ([renewed(A, number=7)], invited(KEY), 0.0, "was renewed"),
    ],
)
def test_invite_that_does_not_hold_lets_nobody_in(known, shown, time, why_not) -> None:
    admission = register(decisions=known)
    assert why_not in admission.redeem(shown, received(shown, A), time) and not admission.receipts


def test_invite_of_the_present_secret_holds() -> None:
    admission, invite = register(decisions=[renewed(A, number=7)]), invited(KEY, generation=7)
    assert admission.redeem(invite, received(invite, B), 0.0) == ""


def test_receipt_needs_the_invites_key_or_the_peers_own() -> None:
    invite, renewal = invited(KEY, generation=1), renewed(A, B)
    admission = register(decisions=[invite, renewal])
    assert "hold the invite's key" in admission.redeem(invite, received(invite, A, key=A), 0.0)
    wrong = [received(invite, A, key=A), received(renewal, A, key=B), received(renewal, C)]
    wrong += [replace(received(invite, A), number=2), received(invite, A, network="other")]
    assert admission.take_receipts(wrong) == []
    right = [received(invite, C), received(renewal, A)]
    assert admission.take_receipts(right) == right and admission.take_receipts(right) == []
    assert admission.holders(SECRET) == {A} and admission.holders(KEY) == {C}


@pytest.mark.parametrize(
    "wrong",
    [
        replace(invited(KEY), verdict=Verdict.BANNED),
        replace(invited(KEY), verdict=Verdict.REVOKED, invite=None),
        replace(invited(KEY), invite=None),
        replace(renewed(A), subject=NETWORK),
        replace(renewed(A), subject=A),
        replace(renewed(A), allowed=(A, B)),
        replace(renewed(A), secret=None),
        replace(ban(A), secret=renewed(A).secret),
    ],
)
def test_decision_that_says_two_things_or_half_of_one_does_not_stand(wrong) -> None:
    again = decision(wrong.verdict, wrong.subject, invite=wrong.invite, secret=wrong.secret, allowed=wrong.allowed)
    assert register().take([again]) == []


def test_newer_secret_and_a_revocation_end_the_receipts_of_before() -> None:
    admission = register(decisions=[invited(KEY), renewed(A, number=1)])
    admission.take_receipts([received(invited(KEY), B), received(renewed(A, number=1), A)])
    assert len(admission.receipts) == 2
    admission.take([revoked(KEY, 2), renewed(A, number=2, replaces=1)])
    assert admission.receipts == () and admission.generation == 2


def test_order_of_arrival_does_not_matter_for_the_digest() -> None:
    made = [received(invited(KEY), A), received(renewed(A, B), B), received(renewed(A, B), A)]
    digests = set()
    for order in permutations(made):
        admission = register(decisions=[renewed(A, B), invited(KEY)])
        admission.take_receipts(order)
        digests.add(admission.digest)
    assert len(digests) == 1 and digests != {register(decisions=[renewed(A, B), invited(KEY)]).digest}


def test_invite_is_forgotten_a_day_after_its_end_and_not_taken_again() -> None:
    admission = register(decisions=[invited(KEY, expires=1000), ban(A)], receipts=[received(invited(KEY), B)])
    admission.expire(1000 + DAY)
    assert admission.about(KEY) is not None
    admission.expire(1001 + DAY)
    assert admission.about(KEY) is None and admission.receipts == () and admission.about(A) is not None
    assert admission.digest == register(decisions=[ban(A)]).digest
    assert admission.take([invited(KEY, expires=1000)]) == [] and admission.take([invited(KEY, expires=2000)])


def test_holder_of_an_invites_key_fills_no_more_than_its_share__and_all_peers_keep_the_same(monkeypatch) -> None:
    monkeypatch.setattr(module, "SPARE", 2)
    invite, other = invited(KEY), invited(b"l" * 32)
    made = [received(invite, bytes([number]) * 32) for number in (5, 3, 9, 1, 7, 2)]
    digests = set()
    for order in permutations(made):
        admission = register(decisions=[invite, other])
        for each in order:
            admission.take_receipts([each])
        digests.add(admission.digest)
        assert sorted(peer[0] for peer in admission.holders(KEY)) == [1, 2, 3]
    assert len(digests) == 1
    assert admission.redeem(other, received(other, A), 0.0) == ""


def test_number_of_hosts_that_invites_let_in_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_RECEIPTS", 1)
    admission, invite = register(decisions=[renewed(A)]), invited(KEY, uses=9, generation=1)
    assert admission.redeem(invite, received(invite, A), 0.0) == ""
    assert admission.redeem(invite, received(invite, B), 0.0)
    assert admission.take_receipts([received(renewed(A), A)]), "the secret has a bound of its own"
