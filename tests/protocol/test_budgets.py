"""What a member may cost this peer."""

from gossipdp.protocol.budgets import BURST, MOST_SENDERS, RATE, SHARED_RATE, Budgets, Checks
from gossipdp.protocol.events import OverBudget
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire.messages import Coverage, Nack, Offer

A, B = b"a" * 32, b"b" * 32
FULL = 4096 + 5120
"""decisions and receipts of the largest register"""
COVERAGE = Coverage(bytes(16), "data", 8, 0, False)
OFFER = Offer(1, bytes(16), bytes(16), "modulo4", 0.5, 0.0, 0, 8)


def test_largest_register__all_of_it_is_checked_at_once() -> None:
    checks = Checks(Budgets(Outputs(), 5.0), A, 5.0)
    assert all(checks() for _ in range(FULL)) and not checks.spent


def test_one_member_has_spent_all__others_have_their_own_and_the_rate_stays_small() -> None:
    budgets = Budgets(Outputs(), 0.0)
    checks = Checks(budgets, A, 0.0)
    while checks():
        pass
    assert checks.spent and sum(budgets.check(B, 0.0) for _ in range(1000)) == BURST
    later = sum(budgets.check(A, 10.0) for _ in range(10_000))
    assert later == min(BURST, 10 * RATE) + 10 * SHARED_RATE


def test_kinds_of_messages_share_one_budget__and_it_is_spent_only_on_those_that_cost() -> None:
    budgets = Budgets(Outputs(), 0.0)
    assert sum(budgets.takes(COVERAGE, A, 0.0) for _ in range(1000)) == BURST / 0.5
    assert not budgets.takes(OFFER, A, 0.0) and budgets.takes(OFFER, B, 0.0) and budgets.takes(Nack(1), A, 0.0)
    assert sum(budgets.takes(OFFER, A, 1.0) for _ in range(1000)) == RATE / 0.25


def test_very_many_senders__few_are_remembered() -> None:
    budgets = Budgets(Outputs(), 0.0)
    for number in range(2 * MOST_SENDERS):
        budgets.takes(OFFER, number.to_bytes(32, "big"), 0.0)
    assert len(budgets._own) == MOST_SENDERS


def test_message_is_beyond_the_budget__told_once_with_sender_and_kind() -> None:
    outputs = Outputs()
    budgets = Budgets(outputs, 0.0)
    while budgets.takes(OFFER, A, 0.0):
        assert not outputs.events
    budgets.takes(COVERAGE, A, 0.0)
    for _ in range(2):
        checks = Checks(budgets, A, 0.0)
        for _ in range(2 * FULL):
            checks()
    assert list(outputs.events) == [OverBudget(A, kind) for kind in ("Offer", "Coverage", "Decisions", "Decisions")]
    assert budgets.takes(OFFER, B, 0.0) and len(outputs.events) == 4
