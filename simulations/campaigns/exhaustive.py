"""Campaign T2: one exchange between two peers, and everything that can go wrong with it, one case at a time.

    python -m simulations.campaigns.exhaustive                      every single fault, in every setting
    python -m simulations.campaigns.exhaustive --cases brief        the selection that `make test` plays
    python -m simulations.campaigns.exhaustive --cases pairs        every two faults of messages
    python -m simulations.campaigns.exhaustive --cases crashes      every fault of a message and a crash
    python -m simulations.campaigns.exhaustive --cases others       a sample of other pairs
    python -m simulations.campaigns.exhaustive --cases pairs --sample 200 --seed 7
    python -m simulations.campaigns.exhaustive --setting narrow --case 17 --trace

The exchange first runs without faults, to list its messages and events. Then it runs once for every fault at each of
them. A message is lost once or twice, doubled at once or late, late, overtaken, or repeated with all that follow it.
After an event either side or both crash, with or without the disk, back at once or later; or a side leaves or pauses;
or the link is cut in one direction or both, for less or more than the silence that ends an exchange. Of two faults, the
second strikes the exchange that contains the first, so messages of recovery are struck too. `duel` says what must hold.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from multiprocessing import get_context
from random import Random

from gossipdp.protocol.presets import SIMULATED_LINK
from simulations.campaigns.duel import Duel
from simulations.campaigns.exchange_faults import Fault, Label, Setting

__all__ = ["CASES", "SETTINGS", "Case", "brief", "crashes", "others", "pairs", "play", "sample", "second", "singles"]

Case = tuple[Fault, ...]

SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(name="wide", window=2, chunks=2),
        Setting(name="narrow", window=1, chunks=2),
        # Jobs take longer than a daemon needs to come back.
        Setting(name="crossing", window=2, chunks=2, crossing=True, job=0.02),
        # The exchange is longer than a round, which cuts it short: the last chunk is declared void.
        Setting(name="slow", window=1, chunks=3, job=0.045, seed=34),
    )
}
OF_MESSAGES = ("lose", "lose twice", "double", "double late", "late", "behind")
BREAKS = ("crash", "both crash", "cut", "one-way")
OTHERS = 3
"""second faults that `others` draws for each first one"""
AT_ONCE = 0.004
"""seconds until a crashed daemon is back: before the jobs of the other side are done"""
AGAIN = (0.35, 0.6)
"""delay of the repetition as a share of the exchange's length, so that it meets chunks that are already mixed"""
RARE, RARER = 7, 41
"""both are prime to the number of faults at one place, so each kind gets its turn"""
LONGER = SIMULATED_LINK.deadlines.silence + 1.0


def singles(setting: Setting) -> list[Case]:
    """Every case of one fault, the exchange without faults first."""
    duel = Duel(setting)
    duel.play()
    messages = [Fault(kind=kind, label=label) for label in duel.labels for kind in OF_MESSAGES]
    length = duel.steps[duel.last_step].at - duel.steps[0].at
    messages += [
        Fault(kind="again", label=label, lasts=round(part * length, 4)) for label in duel.labels for part in AGAIN
    ]
    events = [fault for step in range(duel.last_step + 1) for fault in _after(step)]
    return [(), *((fault,) for fault in (*messages, *events))]


def _after(step: int) -> Iterator[Fault]:
    """Every fault that may strike after one event."""
    for host in (0, 1):
        for lasts, disk in ((AT_ONCE, True), (1.5, True), (0.7, False)):
            yield Fault(kind="crash", after=step, host=host, lasts=lasts, disk=disk)
        yield Fault(kind="one-way", after=step, host=host, lasts=LONGER)
        yield Fault(kind="leave", after=step, host=host, lasts=3.0)
        yield Fault(kind="cut and crash", after=step, host=host, lasts=LONGER)
        for lasts in (0.5, LONGER):
            yield Fault(kind="pause", after=step, host=host, lasts=lasts)
    yield Fault(kind="both crash", after=step, lasts=0.3)
    for lasts in (0.5, LONGER):
        yield Fault(kind="cut", after=step, lasts=lasts)


def brief(setting: Setting) -> list[Case]:
    """A selection of `singles` for `make test`.

    Every message is lost and doubled, and all messages of either side are repeated. Every `RARE`th other fault of
    messages is in it, and every `RARER`th other fault after events.

    After every event either side crashes. A crashed host does nothing, so a long absence is the same from wherever it
    begins between two events of that side. It begins after each of that side's own events, alternately with and without
    the disk. After each event of the other side, the crashed host is back at once.
    """
    duel = Duel(setting)
    duel.play()
    chosen: list[Case] = [()]
    first = {label.sender: label for label in reversed(duel.labels)}
    messages: list[Case] = []
    events: list[Case] = []
    for case in singles(setting)[1:]:
        fault = case[0]
        if fault.kind == "crash":
            own = duel.steps[fault.after].host == fault.host
            away = fault.lasts > AT_ONCE and fault.disk == (fault.after % 2 == 0)
            if away if own else fault.lasts == AT_ONCE:
                chosen.append(case)
        elif fault.kind in ("lose", "double") or (fault.kind == "again" and fault.label in first.values()):
            chosen.append(case)
        else:
            (messages if fault.label is not None else events).append(case)
    return chosen + messages[::RARE] + events[::RARER]


def pairs(setting: Setting) -> list[Case]:
    """Every two faults of messages: one strikes in every way, then any later message is struck in every way."""
    return [case for first in _of_messages(setting) for case in second(setting, first, OF_MESSAGES)]


def crashes(setting: Setting) -> list[Case]:
    """Every fault of a message and then a crash of either side at every later event, and the reverse."""
    stops = [case[0] for case in singles(setting) if case and case[0].kind == "crash" and case[0].disk]
    return [case for first in _of_messages(setting) for case in second(setting, first, ("crash",))] + [
        case for first in stops for case in second(setting, first, OF_MESSAGES)
    ]


def others(setting: Setting) -> list[Case]:
    """A sample of the rest: a crash or a cut, and then a crash, a cut or a fault of a message."""
    firsts = [case[0] for case in singles(setting) if case and case[0].kind in BREAKS]
    chosen: list[Case] = []
    for first in firsts:
        seconds = second(setting, first, (*OF_MESSAGES, *BREAKS))
        chosen += [seconds[number] for number in sample(seconds, OTHERS, first.after)]
    return chosen


def _of_messages(setting: Setting) -> list[Fault]:
    return [case[0] for case in singles(setting) if case and case[0].kind in OF_MESSAGES]


def second(setting: Setting, first: Fault, kinds: Sequence[str]) -> list[Case]:
    """Every case of `first` and a second fault of the given kinds. Messages and events are those of the exchange with
    `first` in it, so messages of recovery are struck too."""
    labels, steps = _with(setting, first)
    messages = [Fault(kind=kind, label=label) for label in labels for kind in OF_MESSAGES]
    events = [fault for step in steps for fault in _after(step)]
    # A lost disk makes no difference after the first fault.
    return [(first, fault) for fault in (*messages, *events) if fault.kind in kinds and fault.disk]


@cache
def _with(setting: Setting, first: Fault) -> tuple[list[Label], range]:
    """The messages and events of the exchange after `first` has struck."""
    duel = Duel(setting, (first,))
    with suppress(Exception):  # what it violates by itself is the business of `singles`
        duel.play()
    if duel.struck is None:
        return [], range(0)
    said, done = duel.struck
    taken = first.label and first.label._replace(occurrence=first.label.occurrence + (first.kind == "lose twice"))
    return [label for label in duel.labels[said:] if label != taken], range(done, duel.last_step + 1)


def play(setting: Setting, faults: Case) -> str:
    """Play one case. Return what broke, or an empty string."""
    try:
        Duel(setting, faults).play()
    except AssertionError as error:
        return str(error) or "an assertion"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


CASES = {"singles": singles, "brief": brief, "pairs": pairs, "crashes": crashes, "others": others}


def sample(cases: Sequence[Case], count: int, seed: int) -> list[int]:
    """Numbers of `count` cases, or of all."""
    return sorted(Random(seed).sample(range(len(cases)), min(count, len(cases))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--setting", choices=SETTINGS, help="only this one")
    parser.add_argument("--cases", choices=CASES, default="singles", help="cases of one fault, or of two")
    parser.add_argument("--case", type=int, help="only this one, by its number")
    parser.add_argument("--sample", type=int, metavar="N", help="only N cases, drawn from --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--first-failure", action="store_true", help="stop at the first case that fails")
    parser.add_argument("--trace", action="store_true", help="print every event of --case")
    arguments = parser.parse_args()
    failed = 0
    for name in [arguments.setting] if arguments.setting else SETTINGS:
        setting = SETTINGS[name]
        cases = CASES[arguments.cases](setting)
        if arguments.case is not None:
            print(f"{name} {arguments.case}: {_named(cases[arguments.case])}")
            Duel(setting, cases[arguments.case], print if arguments.trace else None).play()
            continue
        numbers = range(len(cases)) if arguments.sample is None else sample(cases, arguments.sample, arguments.seed)
        failed += _table(setting, cases, numbers, arguments.jobs, arguments.first_failure)
        if failed and arguments.first_failure:
            break
    return 1 if failed else 0


def _named(case: Case) -> str:
    return " and ".join(map(str, case)) or "untouched"


def _timed(setting: Setting, case: Case) -> tuple[str, float]:
    """What broke, and CPU seconds."""
    began = time.process_time()
    return play(setting, case), time.process_time() - began


def _played(setting: Setting, cases: Iterable[Case], processes: int) -> Iterator[tuple[str, float]]:
    if processes == 1:
        yield from map(partial(_timed, setting), cases)
        return
    with get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(partial(_timed, setting), cases, chunksize=8)


def _table(setting: Setting, cases: Sequence[Case], numbers: Sequence[int], processes: int, first_failure: bool) -> int:
    """Play cases; print a line for each kind of fault and for each violation. Return the number of violations."""
    count: Counter[str] = Counter()
    seconds: defaultdict[str, float] = defaultdict(float)
    violations: Counter[str] = Counter()
    played = _played(setting, (cases[number] for number in numbers), processes)
    for number, (told, took) in zip(numbers, played, strict=True):
        kind = " and ".join(fault.kind for fault in cases[number]) or "untouched"
        seconds[kind] += took
        count[kind] += 1
        if told:
            violations[kind] += 1
            print(f"{setting.name} {number} FAILED: {told} ({_named(cases[number])})", flush=True)
            if first_failure:
                return 1
    print(f"\n{setting.name:32} cases  seconds  violations")
    for kind in count:
        print(f"{kind:32} {count[kind]:5}  {seconds[kind]:7.1f}  {violations[kind]:10}")
    print(f"{'all':32} {count.total():5}  {sum(seconds.values()):7.1f}  {violations.total():10}\n", flush=True)
    return violations.total()


if __name__ == "__main__":
    sys.exit(main())
