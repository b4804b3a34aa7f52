"""Campaign T12: admitted members that are hostile: one among three honest peers, or a league among many.

    python -m simulations.campaigns.hostile --seeds 100
    python -m simulations.campaigns.hostile --leagues --seeds 2

A hostile host runs the peer that all run. Its behaviour (`behaviours`) changes what the peer sends, changes its jobs on
vectors, and sends messages of its own. It cannot send in another member's name, because the transport knows the peer at
each end of a link. It cannot read what others send to each other. Well-formed bad updates are campaign T13.

The command plays every behaviour against the same network without it. It prints what the honest peers lost, and when
they set the culprit aside. With `--leagues` it prints the worst that each league did by any behaviour (`leagues`).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from simulations.campaigns.behaviours.base import Behaviour
from simulations.campaigns.behaviours.exchanges import (
    AckWithoutApplying,
    Equivocation,
    Malformed,
    NeverAck,
    OneByteASecond,
    Overclaim,
)
from simulations.campaigns.behaviours.extremes import Extremes
from simulations.campaigns.behaviours.membership import FalseDeaths, ForgedSender, ForgedWords, Ghosts, Storm
from simulations.campaigns.behaviours.traffic import Flood, Garbage, Replay
from simulations.campaigns.leagues import HONEST, LEAGUES, table
from simulations.campaigns.siege import Outcome, Siege

__all__ = ["BEHAVIOURS", "play"]

BEHAVIOURS: Final[Mapping[str, type[Behaviour]]] = {
    "none": Behaviour,
    "flood": Flood,
    "never ack": NeverAck,
    "ack without applying": AckWithoutApplying,
    "1 B/s": OneByteASecond,
    "equivocation": Equivocation,
    "replay": Replay,
    "forged sender": ForgedSender,
    "forged words": ForgedWords,
    "false deaths": FalseDeaths,
    "storm": Storm,
    "ghosts": Ghosts,
    "garbage": Garbage,
    "malformed": Malformed,
    "overclaim": Overclaim,
    "extremes": Extremes,
}


def play(seed: int, behaviour: str) -> Outcome:
    """Play one siege.

    Raises:
        AssertionError: an invariant of the honest peers broke, or one of them was found at fault.
    """
    siege = Siege(seed, BEHAVIOURS[behaviour])
    siege.begin()
    return siege.siege()


def main(arguments: list[str] | None = None, say: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=sorted({*BEHAVIOURS, *LEAGUES}), help="behaviours; all by default")
    parser.add_argument("--leagues", action="store_true", help="play leagues of 1 to 5 members, young and old")
    parser.add_argument("--honest", nargs="+", type=int, default=HONEST, help="honest peers that leagues meet")
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.seeds)
    known = LEAGUES if options.leagues else BEHAVIOURS
    names = options.only or list(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no behaviour of {'leagues' if options.leagues else 'a lone member'}: {', '.join(unknown)}")
    if options.leagues:
        return 1 if table(seeds, options.honest, names, say) else 0
    calm = {seed: play(seed, "none") for seed in seeds}
    say(f"{'behaviour':22} {'exchanges':>10} {'distance':>10} {'met':>5} {'aside':>6}   strikes")
    for name in names:
        found = {seed: calm[seed] if name == "none" else play(seed, name) for seed in seeds}
        rate = min(found[seed].exchanges / calm[seed].exchanges for seed in seeds)
        away = max(found[seed].distance / calm[seed].distance for seed in seeds)
        met = max((max(each.met.values(), default=0) for each in found.values()), default=0)
        aside = min(len(each.aside) for each in found.values())
        strikes = sum((each.strikes for each in found.values()), Counter())
        say(f"{name:22} {rate:10.2f} {away:10.2f} {met:5} {aside:4}/3   {dict(strikes)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
