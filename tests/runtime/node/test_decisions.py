"""Decisions at one host: in force at once, and on the disk once there is room."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gossipdp.errors import DataError
from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.admission.statements import SECRET, signed
from gossipdp.protocol.wire.messages import Decision, NewSecret, Receipt, Verdict
from gossipdp.runtime.network.identity import Identity, NetworkSecret, digest_of
from gossipdp.runtime.node.decisions import DecisionKeeper
from tests.protocol.admission.deciding import ban, invited, received, register

ME, OTHER, OPERATOR = Identity(b"m" * 32), Identity(b"o" * 32), Identity(bytes(32))
FIRST, NEW = NetworkSecret(bytes(32)), b"n" * 32


class Rig:
    """A keeper with a transport that only holds the secret. `full`: the disk takes nothing."""

    def __init__(self, admission: Admission) -> None:
        self.done: list[Any] = []
        self.full, self.wall = False, 0.0
        self.transport = SimpleNamespace(
            identity=ME, secret=FIRST, admission_changed=lambda: self.done.append("in force"), renew=self._renew
        )
        self.admission = admission
        self.keeper = DecisionKeeper(
            admission,
            cast(Any, self.transport),
            cast(Any, self),
            lambda code, text: self.done.append(code),
            lambda: self.wall,
        )

    def _renew(self, secret: NetworkSecret) -> None:
        self.transport.secret = secret

    def _check(self) -> None:
        if self.full:
            raise DataError("GD-602", "no room", seen="disk full")

    def keep_decisions(self, decisions: Sequence[Decision], receipts: Sequence[Receipt]) -> None:
        self._check()
        self.done.append((tuple(decisions), tuple(receipts)))

    def keep_secret(self, secret: NetworkSecret) -> None:
        self._check()
        self.done.append(secret)


def renewal(*named: Identity, secret: bytes = NEW, digest: bytes = digest_of(NEW)) -> Decision:
    made = NewSecret(0, 0, digest, tuple(Identity.seal(one.id, secret) for one in named))
    allowed = tuple(one.id for one in named)
    return signed(Decision(5, Verdict.RENEWED, SECRET, allowed=allowed, secret=made), "tiny", OPERATOR.sign)


def holding(*decisions: Decision) -> Admission:
    return Admission(ME.id, network="tiny", operator=OPERATOR.id, verify=Identity.verify, decisions=decisions)


def test_decision_is_in_force_at_once_and_saved_once_there_is_room() -> None:
    rig = Rig(
        register(decisions=[ban(b"a" * 32), invited(b"k" * 32)], receipts=[received(invited(b"k" * 32), b"g" * 32)])
    )
    rig.full = True
    rig.keeper.taken()
    rig.keeper.tick()
    assert rig.done == ["in force", "GD-602", "GD-602"] and not rig.keeper.saved
    rig.full = False
    rig.keeper.tick()
    rig.keeper.tick()
    assert rig.done[3:] == [(rig.admission.decisions, rig.admission.receipts)] and rig.keeper.saved


@pytest.mark.parametrize("named", [(ME,), (OTHER, ME)])
def test_new_secret_is_taken_saved_and_receipted_once(named: tuple[Identity, ...]) -> None:
    rig = Rig(holding(renewal(*named)))
    assert rig.keeper.receipt() is None, "it does not hold the secret yet"
    rig.full = True
    rig.keeper.taken()
    wanted = FIRST.renewed(5, NEW)
    assert rig.transport.secret == wanted and not rig.keeper.saved
    rig.full = False
    rig.keeper.tick()
    assert wanted in rig.done and rig.keeper.saved
    made = rig.keeper.receipt()
    assert made is not None and rig.admission.take_receipts([made]) and rig.keeper.receipt() is None
    saved = len(rig.done)
    rig.keeper.taken()
    assert wanted not in rig.done[saved:], "the secret is written once"


def test_secret_of_a_decision_that_was_kept_is_taken_after_a_restart() -> None:
    """As if the host had been restored from a backup of before."""
    rig = Rig(holding(renewal(ME)))
    rig.keeper.tick()
    assert rig.transport.secret == FIRST.renewed(5, NEW) and FIRST.renewed(5, NEW) in rig.done


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (renewal(OTHER), ["GD-208"]),
        (renewal(ME, secret=b"z" * 32), ["GD-208"]),
    ],
)
def test_secret_for_others_or_other_than_the_operator_signed_is_not_taken(made: Decision, told: list[str]) -> None:
    rig = Rig(holding(made))
    rig.keeper.taken()
    assert rig.transport.secret == FIRST and [each for each in rig.done if each == "GD-208"] == told
    assert rig.keeper.receipt() is None


def test_joiner_that_came_with_the_newest_secret_is_told_nothing() -> None:
    """Its key was unknown when the secret was made, so it is not named."""
    rig = Rig(holding(renewal(OTHER)))
    rig.transport.secret = FIRST.renewed(5, NEW)
    rig.keeper.taken()
    assert "GD-208" not in rig.done


def test_of_two_secrets_with_one_number_the_one_that_stands_is_taken() -> None:
    rig = Rig(holding(renewal(ME)))
    rig.transport.secret = FIRST.renewed(5, b"z" * 32)
    rig.keeper.taken()
    assert rig.transport.secret == FIRST.renewed(5, NEW)


def test_secret_is_never_on_the_disk_before_its_decision() -> None:
    rig = Rig(holding(renewal(ME)))
    rig.keeper.taken()
    kept = [each for each in rig.done if each != "in force"]
    assert kept == [(rig.admission.decisions, rig.admission.receipts), FIRST.renewed(5, NEW)]


def test_old_invites_are_forgotten_as_time_goes_on() -> None:
    rig = Rig(register(decisions=[invited(b"k" * 32, expires=1000)]))
    rig.keeper.tick()
    assert rig.admission.decisions
    rig.wall = 200_000.0
    rig.keeper.tick()
    assert not rig.admission.decisions
