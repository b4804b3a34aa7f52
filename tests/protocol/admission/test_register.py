"""Which decisions stand, and whom they admit."""

from itertools import permutations

import pytest
from msgspec.structs import replace

from gossipdp.protocol.admission import register as module
from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.wire.messages import Verdict
from simulations.simulator.host import verify
from tests.protocol.admission.deciding import STRANGER, ban, closed, decision, register

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
    assert admission.take([ban(A)]) and not admission.admits(A) and admission.admits(B)
    assert admission.lists == (frozenset(), frozenset({A})) and "banned" in admission.why_not(A)
    assert admission.take([decision(Verdict.NONE, A, 2)]) and admission.admits(A)
    assert admission.lists == (frozenset(), frozenset())


def test_closed_network_takes_the_peers_that_it_names__less_those_banned() -> None:
    admission = register()
    admission.take([closed(A)])
    assert (admission.admits(A), admission.admits(B), admission.admits(ME)) == (True, False, True)
    assert admission.lists == (frozenset({A, ME}), frozenset())
    admission.take([ban(A)])
    assert not admission.admits(A)
    admission.take([decision(Verdict.NONE, A, 2)])
    assert admission.admits(A), "a ban that is taken back leaves the list as it was"
    admission.take([decision(Verdict.OPEN, number=3)])
    assert admission.admits(B) and not admission.closed


def test_no_part_of_a_register_shuts_out_more_than_the_whole() -> None:
    """A peer that has only some of the decisions, or a liar's choice of them."""
    decisions = [closed(A, B), ban(B), ban(b"c" * 32)]
    for part in permutations(decisions, 2):
        assert register(decisions=part).admits(A)


def test_list_of_the_host_counts_in_a_closed_network_too() -> None:
    admission = register(allowed=frozenset({A}))
    admission.take([closed(B)])
    assert admission.lists == (frozenset({ME}), frozenset())
    assert not admission.admits(A) and not admission.admits(B)
    assert admission.excluded(A) and not admission.excluded(B), "what the operator says holds on all hosts"


def test_order_of_arrival_does_not_matter() -> None:
    decisions = [ban(A, 1), decision(Verdict.NONE, A, 2), ban(A, 3), closed(B), closed(A, number=5)]
    outcomes = set()
    for order in permutations(decisions):
        admission = register(decisions=order)
        outcomes.add((admission.digest, admission.decisions))
    assert len(outcomes) == 1
    assert [each.number for each in outcomes.pop()[1]] == [5, 3]


@pytest.mark.parametrize(
    "change", [{"number": 2}, {"subject": B}, {"verdict": Verdict.NONE}, {"name": "x"}, {"time": 1}, {"allowed": (B,)}]
)
def test_changed_decision_is_refused(change: dict[str, object]) -> None:
    admission = register()
    assert not admission.take([replace(ban(A), **change)]) and admission.decisions == () and admission.changes == 0


def test_decision_that_does_not_fit_its_subject_is_refused() -> None:
    admission = register()
    for wrong in (ban(b""), ban(b"short"), decision(Verdict.CLOSED, A), decision(Verdict.NONE)):
        assert not admission.take([wrong])


def test_decision_of_another_key_or_network_is_refused() -> None:
    assert not register().take([ban(A, operator=STRANGER)])
    assert not register(network="here").take([ban(A, network="there")])
    assert register(network="here").take([ban(A, network="here")])
    assert not Admission(ME, verify=verify).take([ban(A)]), "a host without an operator follows nobody"
    assert register(decisions=[ban(A), ban(B, operator=STRANGER)]).foreign == 1


def test_repeated_and_older_decisions_change_nothing() -> None:
    admission = register(decisions=[ban(A, 2)])
    digest = admission.digest
    assert admission.take([ban(A, 2), decision(Verdict.NONE, A, 1)]) == []
    assert (admission.digest, admission.changes) == (digest, 1)


def test_number_of_subjects_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SUBJECTS", 1)
    admission = register(decisions=[ban(A)])
    assert not admission.take([ban(B)])
    assert admission.take([decision(Verdict.NONE, A, 2)]) and admission.take([closed(A)])
