"""Which decisions stand, and whom they admit."""

from __future__ import annotations

from itertools import permutations

import pytest
from msgspec.structs import replace

from gossipdp.protocol.admission import register as module
from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.wire.messages import Verdict
from simulations.simulator.host import verify
from tests.protocol.admission.deciding import STRANGER, ban, decision, register

ME, A, B = b"m" * 32, b"a" * 32, b"b" * 32


def test_without_lists_and_decisions_every_peer_is_admitted() -> None:
    admission = Admission(ME)
    assert admission.admits(A) and admission.lists == (frozenset(), frozenset()) and not admission.closed


def test_lists_of_the_host_exclude_all_but_this_peer_itself() -> None:
    assert not Admission(ME, banned=frozenset({A})).admits(A)
    listed = Admission(ME, allowed=frozenset({A}), banned=frozenset({ME}))
    assert (listed.admits(A), listed.admits(B), listed.admits(ME)) == (True, False, True)
    assert listed.lists == (frozenset({A, ME}), frozenset())
    assert "[safety] allow" in listed.why_not(B)


def test_banned_peer_is_excluded_until_it_is_unbanned() -> None:
    admission = register()
    assert admission.take(ban(A)) and not admission.admits(A) and admission.admits(B)
    assert admission.lists == (frozenset(), frozenset({A})) and "banned" in admission.why_not(A)
    assert admission.take(decision(Verdict.NONE, A, 2)) and admission.admits(A)
    assert admission.lists == (frozenset(), frozenset())


def test_closed_network_takes_allowed_peers_alone() -> None:
    admission = register()
    for each in (decision(Verdict.CLOSED), decision(Verdict.ALLOWED, A)):
        admission.take(each)
    assert (admission.admits(A), admission.admits(B), admission.admits(ME)) == (True, False, True)
    assert admission.lists == (frozenset({A, ME}), frozenset())
    admission.take(ban(A, 2))
    assert not admission.admits(A)
    admission.take(decision(Verdict.NONE, number=3))
    assert admission.admits(B) and not admission.admits(A)


def test_host_without_allowed_peers_admits_nobody_else_in_a_closed_network() -> None:
    admission = register(allowed=frozenset({A}))
    admission.take(decision(Verdict.CLOSED))
    assert admission.lists == (frozenset({ME}), frozenset()) and not admission.admits(A)


def test_order_of_arrival_does_not_matter() -> None:
    decisions = [ban(A, 1), decision(Verdict.NONE, A, 2), ban(A, 3), ban(B, 1), decision(Verdict.NONE, B, 5)]
    outcomes = set()
    for order in permutations(decisions):
        admission = register(decisions=order)
        outcomes.add((admission.digest, admission.decisions))
    assert len(outcomes) == 1
    assert [each.number for each in outcomes.pop()[1]] == [3, 5]


@pytest.mark.parametrize(
    "change", [{"number": 2}, {"subject": B}, {"verdict": Verdict.NONE}, {"name": "x"}, {"time": 1}]
)
def test_changed_decision_is_refused(change: dict[str, object]) -> None:
    admission = register()
    assert not admission.take(replace(ban(A), **change)) and admission.decisions == () and admission.changes == 0


def test_decision_that_does_not_fit_its_subject_is_refused() -> None:
    admission = register()
    for wrong in (ban(b""), ban(b"short"), decision(Verdict.CLOSED, A), decision(Verdict.ALLOWED)):
        assert not admission.take(wrong)


def test_decision_of_another_key_or_network_is_refused() -> None:
    assert not register().take(ban(A, operator=STRANGER))
    assert not register(network="here").take(ban(A, network="there"))
    assert register(network="here").take(ban(A, network="here"))
    assert not Admission(ME, verify=verify).take(ban(A)), "a host without an operator follows nobody"


def test_repeated_and_older_decisions_change_nothing() -> None:
    admission = register(decisions=[ban(A, 2)])
    digest = admission.digest
    assert not admission.take(ban(A, 2)) and not admission.take(decision(Verdict.NONE, A, 1))
    assert (admission.digest, admission.changes) == (digest, 1)


def test_number_of_subjects_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SUBJECTS", 1)
    admission = register(decisions=[ban(A)])
    assert not admission.take(ban(B)) and admission.take(decision(Verdict.NONE, A, 2))
