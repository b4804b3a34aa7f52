"""Decides whether another start of the training command is in vain. Nothing here may start, read or ask a process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from gossipdp.errors import ConfigError, DataError, HardwareError, MismatchError
from gossipdp.protocol.wire.messages import printable

__all__ = ["NEVER_ATTACHED", "Verdict", "gives_up", "stays_alone"]


class Rule(NamedTuple):
    """`ends` ends in a row, each with one of `codes` after a life shorter than `life` seconds.

    Without `codes` any code counts, until one start has attached.
    """

    ends: int
    life: float
    codes: frozenset[int] = frozenset()


RULES: Final = (
    # `attach` refused the model, the optimizer or the ranks. To load and read a large model may take minutes.
    Rule(3, 600.0, frozenset({ConfigError.exit_code, MismatchError.exit_code})),
    # Usage, or a script that is not there; a command that cannot be executed; one that is not there.
    Rule(3, 60.0, frozenset({2, 126, 127})),
    # The model has turned NaN again (GD-403), or state on the disk does not fit: another start meets the same.
    Rule(1, math.inf, frozenset({DataError.exit_code})),
    Rule(5, 5.0),
)
NEVER_ATTACHED: Final = 10
"""Ends in a row before any start has attached, each after a life shorter than ALONE_LIFE, whatever the code."""
ALONE_LIFE: Final = 60.0
"""Seconds."""


class Verdict:
    """Counts the ends of one command."""

    def __init__(self) -> None:
        self._counts = [0] * len(RULES)
        self._alone = 0
        self._trained = False
        """One start attached: the command is right, and what fails now may pass."""

    @property
    def doubtful(self) -> bool:
        """Whether the last end counts against the command."""
        return any(self._counts) or self._alone > 0

    def judge(self, code: int, lived: float, attached: bool | None) -> int:
        """Record one end.

        Args:
            code: the exit code, negative for a signal.
            lived: seconds from the start.
            attached: whether this start attached; None if the daemon could not tell.

        Returns:
            After how many such ends in a row to give up; 0: start the command again.
        """
        self._trained = self._trained or attached is True
        self._alone = self._alone + 1 if attached is False and lived < ALONE_LIFE and not self._trained else 0
        for at, rule in enumerate(RULES):
            counts = lived < rule.life and (code in rule.codes if rule.codes else not self._trained)
            self._counts[at] = self._counts[at] + 1 if counts else 0
        ends = [rule.ends for rule, count in zip(RULES, self._counts, strict=True) if count >= rule.ends]
        return min(ends, default=NEVER_ATTACHED if self._alone >= NEVER_ATTACHED else 0)


def gives_up(ended: str, ends: int, lines: Sequence[str]) -> ConfigError:
    """GD-316: the training command is not started again.

    Args:
        ended: how it ended, such as "exited with 2".
        ends: how often in a row.
        lines: the last ones that it wrote to standard error.
    """
    said = "".join(f"\n        {printable(line)}" for line in lines)
    times = f", {ends} times in a row" if ends > 1 else ""
    return ConfigError(
        "GD-316",
        "the training command fails at each start, and is not started again" if times else "training cannot go on",
        seen=f"it {ended}{times}" + (f"; on standard error it wrote last:{said}" if said else ""),
        do="run it by itself until it trains, then start this peer again",
    )


def stays_alone(when: str) -> HardwareError:
    """GD-503: the training command has not attached. `when` says how long it has run."""
    return HardwareError(
        "GD-503",
        "the training command has not attached: nothing that it trains is exchanged",
        seen=when,
        do="call gossipdp.attach(model, optimizer) in the script, and do not set GOSSIPDP_OFF",
    )
