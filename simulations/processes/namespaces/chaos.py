"""Real peers under a seeded script of faults.

    python -m simulations.processes.namespaces.chaos --hosts 4 --seconds 60 --seed 1

Every host is a network namespace with a daemon and a training process, joined by an invite. The run begins quietly, for
comparison with the end. Then faults strike: kill -9, stops, cuts, slow cables and broken connections. After the faults
all peers must soon know each other, train, and exchange as before. `watch` observes from outside. The run prints one
line an event and a table at the end. The exit code is 1 if an invariant broke. The same seed gives the same script, but
clocks and threads are real: only the simulator repeats a failure exactly.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import itertools
import math
import re
import select
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from simulations.processes.namespaces.faults import KINDS, script
from simulations.processes.namespaces.plan import Plan, Report
from simulations.processes.namespaces.stage import Stage
from simulations.processes.needs import lacks
from simulations.processes.progress import undelayed

__all__ = ["Chaos", "Plan", "Report"]

LOOK = 0.2
"""seconds"""
WINDOW = 8
"""the preset's window: chunks that one crash may leave in doubt at each partner"""
KEPT = 0.5
"""least share of the earlier exchange rate after the faults (I7)"""
APART = 8.0
"""seconds after which an exchange that was cut off has failed"""


class Missed(Exception):
    """A condition did not hold in time. The run cannot go on."""


class Chaos:
    """One run.

    Args:
        directory: for homes and logs.
        say: receives a line for each event.
    """

    def __init__(self, plan: Plan, directory: Path, say: Callable[[str], None] = print) -> None:
        self.plan = plan
        self._violations: list[str] = []
        self._faults = 0
        self._failed = 0.0
        self._undisturbed = float("nan")
        self._figures: dict[str, str] = {}
        self._rows: list[dict[str, object]] = []
        self._tell = say
        self._began = time.monotonic()
        self._stage = Stage(plan, directory, self._blame)
        self._quiet = (0.0, 0.0)
        """begin and end of the quiet time"""
        self._apart: tuple[float, int] | None = None
        """begin of a cut between all hosts, and the number of failed exchanges by then"""

    def run(self) -> Report:
        """Play the run. Faults of the peers are in the report, and raise nothing."""
        with self._stage as stage:
            try:
                self._settle_in()
                began = time.monotonic()
                before = self._rate("before the faults")
                self._quiet = began, time.monotonic()
                self._suffer()
                self._recover(before)
                self._check_end()
                self._check_others()
            except Missed as missed:
                self._blame(str(missed))
                for host in stage.hosts:
                    self._tell(f"--- {host.name}\n{host.last_words(15)}")
        return Report(self._violations, self._faults, self._failed, self._undisturbed, self._figures, self._rows)

    # -- acts -------------------------------------------------------------------------------------------------

    def _settle_in(self) -> None:
        plan, stage = self.plan, self._stage
        self._say(f"{plan.hosts} hosts, seed {plan.seed}, {plan.rate or 'no rate'}, round trip {plan.rtt * 1e3:g} ms")
        stage.start(0)
        self._until("the founder writes an invite", stage.invite.exists, 30)
        for number in range(1, plan.hosts):
            stage.start(number)
        self._until("all know all, and exchange", stage.together, 2 * plan.bound)

    def _suffer(self) -> None:
        plan, stage = self.plan, self._stage
        before = self._results()
        stage.set_loss(plan.loss)
        faults = script(plan.seed, plan.hosts, plan.seconds, kinds=plan.kinds, pause=plan.pause) if plan.kinds else []
        begun, order = time.monotonic(), itertools.count()
        agenda = [(fault.begins, next(order), fault, True) for fault in faults]
        while agenda or time.monotonic() - begun < plan.seconds:
            self._look_until(begun + (agenda[0][0] if agenda else plan.seconds), failing=plan.failing)
            if agenda:
                _, _, fault, begins = heapq.heappop(agenda)
                if begins:
                    heapq.heappush(agenda, (fault.ends, next(order), fault, False))
                if line := stage.begin(fault) if begins else stage.finish(fault):
                    self._say(line)
        self._faults += len(faults)
        if self._apart is not None:
            stage.lab.heal()
        stage.set_loss(0.0)
        self._say("all faults are over")
        during = self._results() - before
        self._failed = 1.0 - during["done"] / max(1, during.total())
        self._figures["exchanges that failed meanwhile"] = f"{self._failed:.2f} of {during.total()}"

    def _recover(self, before: float) -> None:
        over, deadline, stage = time.monotonic(), undelayed() + 2 * self.plan.bound, self._stage
        self._until("all know all, train and have the model", stage.together, self.plan.bound)
        self._figures["together after the last fault"] = f"{time.monotonic() - over:.1f} s"
        had = [host.exchanges() for host in stage.hosts]
        self._until(
            "all exchange again",
            lambda: all(host.exchanges() > count for host, count in zip(stage.hosts, had, strict=True)),
            self.plan.bound,
        )
        self._figures["all exchanging again"] = f"{time.monotonic() - over:.1f} s"
        while (after := self._rate("after the faults")) < KEPT * before:
            if undelayed() > deadline:
                self._blame(f"{after:.2f} exchanges a second and host, {before:.2f} before the faults")
                break
        self._figures["exchanges a second and host"] = f"{before:.2f} before, {after:.2f} after"

    def _check_end(self) -> None:
        plan, stage, now = self.plan, self._stage, time.monotonic()
        for watch in stage.watches:
            watch.look(metrics=True)
        for watch in stage.watches:
            watch.last_checks(now)
        grew = [watch.growth(plan.warm_up) for watch in stage.watches]
        if whole := [each for each in grew if math.isfinite(each[0])]:
            share, more = (max(each) for each in zip(*whole, strict=True))
            self._figures["memory and descriptors grew, at the most"] = f"to {share:.3f}, by {more}"
        for watch, (growth, descriptors) in zip(stage.watches, grew, strict=True):
            done = watch.exchanges()
            self._rows.append(
                {
                    "host": watch.host.name,
                    "lives": len(watch.lives),
                    "longest pause": f"{watch.longest_pause(now):.2f} s",
                    "exchanges": done["done"],
                    "cut": done["cut"] + done["slow"],
                    "lost": done["lost"],
                    "in doubt": watch.in_doubt(),
                    "memory": f"{watch.lives[-1].memory[-1][1] >> 20} MiB",
                    "growth": f"{growth:.3f}",
                    "descriptors": f"{watch.lives[-1].memory[-1][2]} ({descriptors:+d})",
                    "mean": f"{watch.host.mean():.3f}",
                }
            )
            if told := watch.grew(plan.warm_up, plan.growth):
                self._blame(f"{watch.host.name}: {told}")
            if descriptors > plan.descriptors:
                self._blame(f"{watch.host.name}: {descriptors} descriptors more")
        founded = sum(host.text().count("model founded") for host in stage.hosts)
        if founded != 1:
            self._blame(f"the model was founded {founded} times")
        doubts, crashes = sum(watch.in_doubt() for watch in stage.watches), stage.killed
        if doubts > crashes * WINDOW * 2:
            self._blame(f"{doubts} chunks in doubt after {crashes} killed daemons")
        self._figures["faults"] = f"{self._faults}, {crashes} daemons killed, {doubts} chunks in doubt"

    def _check_others(self) -> None:
        """Check the steps of the other hosts while one was starved (T7)."""
        watches, kept = self._stage.watches, []
        for since, until, _ in self._stage.starved:
            suffering = {host for begins, ends, host in self._stage.starved if begins < until and ends > since}
            for watch in (watch for number, watch in enumerate(watches) if number not in suffering):
                share = watch.pace(since, until) / watch.pace(*self._quiet)
                if math.isfinite(share):
                    kept.append(share)
        if kept:
            mean = sum(kept) / len(kept)
            self._undisturbed = mean
            self._figures["steps/s of the others while one is starved"] = f"{mean:.1%} of before"
        if self.plan.undisturbed and not (kept and mean >= self.plan.undisturbed):
            self._blame(f"the others kept {self._undisturbed:.1%} of their steps/s while one was starved")

    def _results(self) -> Counter[str]:
        """Results of all exchanges so far, both sides counted."""
        return sum((watch.exchanges() for watch in self._stage.watches), Counter())

    # -- looking ----------------------------------------------------------------------------------------------

    def _look_until(self, deadline: float, *, failing: float = 0.0) -> None:
        while True:
            self._look()
            if failing:
                self._fail_exchanges(failing)
            left = deadline - time.monotonic()
            if left <= 0:
                return
            select.select([], [], [], min(LOOK, left))

    def _look(self) -> None:
        if ended := self._stage.look():
            raise Missed(ended)

    def _fail_exchanges(self, share: float) -> None:
        """While too few exchanges have failed, cut all hosts off from each other in the middle of one until it fails.
        After the heal, break the connections of one host."""
        stage, now = self._stage, time.monotonic()
        lives = [watch.lives[-1].status for watch in stage.watches if watch.lives]
        ended = sum(sum(status["exchanges"].values()) for status in lives)
        failed = ended - sum(status["exchanges"].get("done", 0) for status in lives)
        if self._apart is not None:
            since, had = self._apart
            if now - since > APART or (failed > had and not any(status["partner"] for status in lives)):
                self._apart = None
                stage.lab.heal()
                stage.lab.break_connections(stage.lab.hosts[self._faults % len(stage.hosts)])
        elif failed <= share * ended and any(status["partner"] for status in lives):
            self._apart = now, failed
            stage.lab.cut(*([host] for host in stage.lab.hosts))
            self._faults += 1

    def _rate(self, when: str) -> float:
        """Exchanges a second and host over the next `quiet` seconds."""
        hosts, begun = self._stage.hosts, time.monotonic()
        had = sum(host.exchanges() for host in hosts)
        self._look_until(begun + self.plan.quiet)
        rate = (sum(host.exchanges() for host in hosts) - had) / (time.monotonic() - begun) / len(hosts)
        self._say(f"{rate:.2f} exchanges a second and host {when}")
        return rate

    def _until(self, what: str, condition: Callable[[], bool], seconds: float) -> None:
        deadline = undelayed() + seconds
        while not condition():
            if undelayed() > deadline:
                raise Missed(f"not within {seconds:g} s: {what}; {'; '.join(self._seen())}")
            self._look()
            select.select([], [], [], LOOK)
        self._say(what)

    def _seen(self) -> Iterator[str]:
        for host in self._stage.hosts:
            if status := host.status():
                seen = {key: status[key] for key in ("state", "training", "members", "exchanges")}
                yield f"{host.name} {seen}"
            else:
                yield f"{host.name} does not answer"

    def _blame(self, what: str) -> None:
        self._violations.append(what)
        self._say(f"VIOLATION {what}")

    def _say(self, what: str) -> None:
        self._tell(f"{time.monotonic() - self._began:7.2f} s  {what}")


def main(argv: Sequence[str] | None = None) -> int:
    defaults = Plan()
    program = "python -m simulations.processes.namespaces.chaos"
    parser = argparse.ArgumentParser(prog=program, description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--hosts", type=int, default=defaults.hosts)
    parser.add_argument("--seconds", type=float, default=defaults.seconds, help="of faults")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--rate", help="of each cable and way, in tc's words: 10mbit")
    parser.add_argument("--delay", type=_seconds, default=0.0, help="round trip between any two hosts: 200ms")
    parser.add_argument("--loss", type=float, default=0.0, help="probability, while the faults last")
    parser.add_argument(
        "--kinds", default=",".join(KINDS), help=f'comma-separated, of: {", ".join(KINDS)}; "" for none'
    )
    parser.add_argument("--failing", type=float, default=0.0, help="share of exchanges to break")
    parser.add_argument("--size", type=int, default=defaults.size, help="parameters of the model")
    parser.add_argument("--pace", type=float, default=defaults.pace, help="seconds between training steps")
    parser.add_argument("--keep", type=Path, help="directory for homes and logs; a temporary one if not given")
    options = parser.parse_args(argv)
    kinds = [kind for kind in options.kinds.split(",") if kind]
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        parser.error(f"no such kind: {', '.join(unknown)}")
    plan = Plan(
        hosts=options.hosts, seconds=options.seconds, seed=options.seed, rate=options.rate, rtt=options.delay,
        loss=options.loss, kinds=kinds, failing=options.failing, size=options.size,
        pace=options.pace,
    )  # fmt: skip
    if why := lacks("weather"):
        print(why, file=sys.stderr)
        return 7
    with contextlib.ExitStack() as stack:
        if options.keep is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gossipdp-chaos-")))
        else:
            directory = options.keep
            directory.mkdir(parents=True)
        report = Chaos(plan, directory).run()
    print(report.table())
    for violation in report.violations:
        print(f"violated: {violation}")
    return 1 if report.violations else 0


def _seconds(text: str) -> float:
    found = re.fullmatch(r"([0-9.]+)(ms|s)?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text}: a time such as 200ms or 1.5s")
    return float(found[1]) * (0.001 if found[2] == "ms" else 1.0)


if __name__ == "__main__":
    sys.exit(main())
