"""Campaign T2: one exchange between two peers, and everything that can go wrong with it, one case at a time.

    python -m simulations.exhaustive                      every single fault, in every setting
    python -m simulations.exhaustive --cases pairs        every two faults of messages; crashes: and of one with a crash
    python -m simulations.exhaustive --setting narrow --case 17 --trace

The exchange is played once untouched, to list its messages and its events; then once for every fault at each of them:
each message lost once and twice, doubled at once and late, overtaken; after each event a crash of either side or both,
with the disk and without, back at once or later, a cut in one direction or both, short or longer than the silence that
ends an exchange, and a pause. What must hold afterwards stands in `duel`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import combinations, product

from simulations.duel import DEADLINES, Duel, Fault, Setting

__all__ = ["CASES", "SETTINGS", "crashes", "pairs", "play", "singles"]

SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(name="wide", window=2, chunks=2),
        Setting(name="narrow", window=1, chunks=3),
        Setting(name="crossing", window=2, chunks=2, crossing=True),
        Setting(name="slow", window=2, chunks=2, job=0.08),
    )
}
OF_MESSAGES = ("lose", "lose twice", "double", "double late", "late", "behind")
AT_ONCE = 0.004
"""seconds in which a daemon that crashed is back, sooner than the jobs of the other side are done"""
LONGER = DEADLINES.silence + 1.0


def singles(setting: Setting) -> list[tuple[Fault, ...]]:
    """Every case of one fault, the untouched exchange first."""
    duel = Duel(setting)
    duel.play()
    messages = [Fault(kind=kind, label=label) for label in duel.labels for kind in OF_MESSAGES]
    events = [fault for step in range(duel.last_step + 1) for fault in _after(step)]
    return [(), *((fault,) for fault in (*messages, *events))]


def _after(step: int) -> Iterator[Fault]:
    """What may strike after one event."""
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


def pairs(setting: Setting) -> list[tuple[Fault, ...]]:
    """Every two faults of messages: two messages struck, each in every way."""
    faults = [case[0] for case in singles(setting) if case and case[0].label is not None]
    return [(one, two) for one, two in combinations(faults, 2) if one.label != two.label]


def crashes(setting: Setting) -> list[tuple[Fault, ...]]:
    """Every fault of a message together with a crash of either side at every event."""
    cases = [case[0] for case in singles(setting) if case]
    messages = [fault for fault in cases if fault.label is not None]
    stops = [fault for fault in cases if fault.kind == "crash" and fault.disk]
    return list(product(messages, stops))


def play(setting: Setting, faults: tuple[Fault, ...]) -> str:
    """One case: "" or what was violated."""
    try:
        Duel(setting, faults).play()
    except AssertionError as error:
        return str(error) or "an assertion"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


CASES = {"singles": singles, "pairs": pairs, "crashes": crashes}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--setting", choices=SETTINGS, help="only this one")
    parser.add_argument("--cases", choices=CASES, default="singles", help="of one fault, or which of two")
    parser.add_argument("--case", type=int, help="only this one, by its number")
    parser.add_argument("--every", type=int, default=1, help="only every n-th case")
    parser.add_argument("--trace", action="store_true", help="print all that happens in --case")
    arguments = parser.parse_args()
    failed = 0
    for name in [arguments.setting] if arguments.setting else SETTINGS:
        setting = SETTINGS[name]
        cases = CASES[arguments.cases](setting)
        if arguments.case is not None:
            print(f"{name} {arguments.case}: {' and '.join(map(str, cases[arguments.case])) or 'untouched'}")
            Duel(setting, cases[arguments.case], print if arguments.trace else None).play()
            continue
        failed += _table(setting, cases, arguments)
    return 1 if failed else 0


def _table(setting: Setting, cases: list[tuple[Fault, ...]], arguments: argparse.Namespace) -> int:
    """Play all, print a line a kind of fault and one for each violation; returns the violations."""
    count: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    violations: Counter[str] = Counter()
    for number in range(0, len(cases), arguments.every):
        kind = " and ".join(fault.kind for fault in cases[number]) or "untouched"
        began = time.perf_counter()
        told = play(setting, cases[number])
        seconds[kind] += time.perf_counter() - began
        count[kind] += 1
        if told:
            violations[kind] += 1
            faults = " and ".join(map(str, cases[number]))
            print(f"{setting.name} {number}: {faults}\n  {told}", flush=True)
    print(f"\n{setting.name:32} cases  seconds  violations")
    for kind in count:
        print(f"{kind:32} {count[kind]:5}  {seconds[kind]:7.1f}  {violations[kind]:10}")
    print(f"{'all':32} {count.total():5}  {sum(seconds.values()):7.1f}  {violations.total():10}\n", flush=True)
    return violations.total()


if __name__ == "__main__":
    sys.exit(main())
