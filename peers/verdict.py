"""Decides whether to restart the training command. Nothing here may start, read or ask a process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from gossipdp.errors import ConfigError, DataError, GossipdpError, HardwareError, MismatchError, UnreachableError
from gossipdp.protocol.wire.messages import printable

__all__ = ["NEVER_ATTACHED", "Verdict", "gives_up", "not_attached", "occupied_by", "trained_alone"]


class Rule(NamedTuple):
    """Give up after `ends` consecutive ends, each for one of the reasons after a life shorter than `life` seconds.

    Without a reason any end counts but `PASSING`, until one start has attached. With `passes` too, an end counts until
    then, and none in whose place another process is attached.
    """

    ends: int
    life: float
    told: frozenset[int] = frozenset()
    """exit codes of the errors that the training process told the daemon"""
    codes: frozenset[int] = frozenset()
    """exit codes of an end without such an error"""
    passes: bool = False


RULES: Final = (
    # `attach` refused the model, the optimizer or the ranks. Loading a large model may take minutes.
    Rule(3, 600.0, frozenset({ConfigError.exit_code, MismatchError.exit_code})),
    # The model does not fit in memory (GD-502). Once it did, other processes may give some back.
    Rule(3, 600.0, frozenset({HardwareError.exit_code}), passes=True),
    # A usage error or a missing script; a command that cannot be executed; a missing command. Not after training: then
    # the code is the script's own.
    Rule(3, 60.0, codes=frozenset({2, 126, 127}), passes=True),
    # The model turned NaN again (GD-403), or state on the disk does not fit. A restart changes neither.
    Rule(1, math.inf, frozenset({DataError.exit_code})),
    Rule(5, 5.0),
)
PASSING: Final = UnreachableError.exit_code
"""Exit code of an error that counts against no command: the daemon's open files are used up (GD-104), or no model has
come in time (GD-106)."""
NEVER_ATTACHED: Final = 10
"""Consecutive ends before any start has attached, with any other code, each after a life below `SHORT_LIFE`."""
SHORT_LIFE: Final = 60.0
"""Seconds."""
OCCUPIED: Final = 8
"""Consecutive ends of starts that have not attached while another process was. Their pauses take a minute."""


class Verdict:
    """Counts the ends of one command."""

    def __init__(self) -> None:
        self._counts = [0] * len(RULES)
        self._alone = self._occupied = 0
        self._trained = False
        """One start has attached: the command is right, and a failure may pass."""

    @property
    def doubtful(self) -> bool:
        """Whether the last end counts against the command."""
        return any(self._counts) or self._alone > 0 or self._occupied > 0

    def judge(self, code: int, lived: float, attached: bool | None, *, told: int = 0, occupied: bool = False) -> int:
        """Record one end.

        Args:
            code: the exit code, negative for a signal. A script may end with any for a reason of its own.
            lived: seconds since the start.
            attached: whether this start attached; None if unknown.
            told: exit code of the error that the training process told the daemon; 0 if it told none.
            occupied: another process is attached in its place.

        Returns:
            The number of consecutive ends after which to give up, if it is reached; else 0.
        """
        self._trained = self._trained or attached is True
        unnamed = told != PASSING and not self._trained
        self._alone = self._alone + 1 if attached is False and lived < SHORT_LIFE and unnamed else 0
        for at, rule in enumerate(RULES):
            named = told in rule.told or (not told and code in rule.codes)
            counts = lived < rule.life and (named if rule.told or rule.codes else unnamed)
            counts = counts and not (rule.passes and (self._trained or occupied))
            self._counts[at] = self._counts[at] + 1 if counts else 0
        self._occupied = self._occupied + 1 if occupied else 0
        if self._occupied >= OCCUPIED:
            return OCCUPIED
        ends = [rule.ends for rule, count in zip(RULES, self._counts, strict=True) if count >= rule.ends]
        return min(ends, default=NEVER_ATTACHED if self._alone >= NEVER_ATTACHED else 0)


def gives_up(ended: str, ends: int, lines: Sequence[str], told: str = "") -> ConfigError:
    """GD-316: the supervisor gives the training command up.

    Args:
        ended: how it ended in words, such as "exited with 2".
        ends: number of consecutive ends.
        lines: the last lines on its standard error.
        told: code of the error that it told the daemon, "" if it told none.
    """
    said = "".join(f"\n        {printable(line)}" for line in lines)
    times = f", {ends} times in a row" if ends > 1 else ""
    return ConfigError(
        "GD-316",
        "the training command fails at each start, and is not started again" if times else "training cannot continue",
        seen=f"it {ended}{times}"
        + (f", because of {told}" if told else "")
        + (f"; its last lines on standard error:{said}" if said else ""),
        do=("do what these lines say" if said else "do what it wrote last")
        + f": gossipdp refused the script, its model, its state or this host ({told}); then start this peer again"
        if told
        else "run it without gossipdp until it trains, then start this peer again",
    )


def occupied_by(other: int, ended: str, ends: int) -> HardwareError:
    """GD-503: the supervisor gives the training command up, because the process `other` is attached in its place."""
    return HardwareError(
        "GD-503",
        "another training process is attached to this peer, so the training command cannot attach",
        seen=f"process {other} is attached; the training command {ended}, {ends} times in a row",
        do=f"end process {other}, or give it a peer of its own (--home); then start this peer again",
    )


def trained_alone(code: str, text: str) -> GossipdpError:
    """The training command ended well, but trained alone: the daemon's model does not have its steps.

    Args:
        code: of the error that it told the daemon.
        text: what that said.
    """
    do = "do what the error of the training command says; then start this peer again"
    return GossipdpError(
        code, "training went on alone until its end, and the run of this peer is not finished", seen=text, do=do
    )


def not_attached(when: str) -> HardwareError:
    """GD-503: the training command has not attached. `when` says how long it has run."""
    return HardwareError(
        "GD-503",
        "the training command has not attached: its model is not exchanged",
        seen=when,
        do="call gossipdp.attach(model, optimizer) in the script, and unset GOSSIPDP_OFF",
    )
