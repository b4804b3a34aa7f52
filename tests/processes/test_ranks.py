"""Hosts of several ranks, in network namespaces: groups under DDP and FSDP2 gossip with each other, and lose a rank."""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulations.processes.namespaces.hosts import Lab
from simulations.processes.namespaces.processes import pause
from tests.processes.running import Host, end, host_in, until

pytestmark = [pytest.mark.long, pytest.mark.processes, pytest.mark.needs("namespaces")]
SCRIPT = Path(__file__).with_name("training_ranks.py")
RANKS = {"one": 1, "ddp": 2, "fsdp": 2}
STEPS = 2000
"""steps of the network's clock; after 400, two hosts have hardly learnt more than one"""
MEET = 6
"""exchanges at a rate of zero, in which replicas agree"""
PAUSE = 5.0
"""seconds without a step, though a CPU was free"""


class Groups:
    """Two hosts, and the notes of each rank."""

    def __init__(self, directory: Path, lab: Lab) -> None:
        self.hosts = [host_in(lab, number, directory) for number in range(len(lab.hosts))]

    def command(self, diary: Path, kind: str, steps: int, *other: Path) -> list[str]:
        arguments = [str(SCRIPT), str(diary), str(steps), kind, *map(str, other)]
        if kind == "one":
            return [sys.executable, *arguments]
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS[kind])]
        return [sys.executable, *launcher, "--max-restarts", "3", *arguments]

    def start(self, kinds: tuple[str, str], steps: int, *, abreast: bool = False, **hurt: str) -> None:
        """`abreast`: the host that is ahead waits for the other."""
        first, second = self.hosts
        others = [[second.diary], [first.diary]] if abreast else [[], []]
        first.start_supervised(self.command(first.diary, kinds[0], steps, *others[0]))
        invite = first.home / "invite"
        until("the founder writes an invite", invite.exists, self.hosts)
        second.start_supervised(self.command(second.diary, kinds[1], steps, *others[1]), join=f"@{invite}", **hurt)

    def notes(self, host: Host, rank: int, event: str) -> list[dict]:
        path = Path(f"{host.diary}.{rank}")
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [note for note in map(json.loads, lines) if note["event"] == event]


@pytest.fixture
def groups(tmp_path: Path, lab: Lab) -> Iterator[Groups]:
    made = Groups(tmp_path, lab)
    try:
        yield made
    finally:
        end(made.hosts)


def together(groups: Groups, kinds: tuple[str, str]) -> tuple[list[float], list[int]]:
    """Both hosts' validation losses in nats when the network's clock is at STEPS, and the steps of each."""
    groups.start(kinds, STEPS, abreast=True)
    exchanges = [0, 0]

    def trained() -> bool:
        return all(groups.notes(host, 0, "trained") for host in groups.hosts)

    def steps() -> tuple[int, ...]:
        return tuple(len(groups.notes(host, 0, "step")) for host in groups.hosts)

    def have_met() -> bool:
        return all(host.exchanges() >= past + MEET for host, past in zip(groups.hosts, exchanges, strict=True))

    until("both are trained", trained, groups.hosts, moves=steps)
    exchanges[:] = [host.exchanges() for host in groups.hosts]
    until("what was learnt last is exchanged", have_met, groups.hosts)
    for host in groups.hosts:
        Path(f"{host.diary}.stop").touch()
    until("both end", lambda: all(groups.notes(host, 0, "end") for host in groups.hosts), groups.hosts)
    losses = []
    for host, kind in zip(groups.hosts, kinds, strict=True):
        ranks = [groups.notes(host, rank, "step") for rank in range(RANKS[kind])]
        digests = [[note["digest"] for note in notes if note["digest"]] for notes in ranks]
        assert all(found == digests[0] for found in digests) and len(set(digests[0])) == len(digests[0]), host.name
        losses.append(groups.notes(host, 0, "end")[0]["validation"])
    trained_at = [groups.notes(host, 0, "trained")[-1] for host in groups.hosts]
    made, before = ([note[what] for note in trained_at] for what in ("step", "validation"))
    print(
        f"{kinds}: {losses[0]:.3f} and {losses[1]:.3f} nats after {made} steps and {min(exchanges)} exchanges;"
        f" {before[0]:.3f} and {before[1]:.3f} before the last {MEET}"
    )
    assert abs(losses[0] - losses[1]) <= 0.02 and abs(before[0] - before[1]) <= 0.02
    for host in groups.hosts:
        assert "GD-501" not in host.text()
    return losses, made


@pytest.mark.parametrize("kinds", [("ddp", "ddp"), ("fsdp", "fsdp"), ("ddp", "fsdp"), ("one", "ddp")], ids="-".join)
def test_hosts_of_any_kind_train_one_model_better_than_each_alone(
    groups: Groups, kinds: tuple[str, str], tmp_path: Path
) -> None:
    """Alone a host makes as many steps, of the same windows, on the same schedule.

    Of the two together, the one ahead waits. What a host gets from the other is its steps, and on a busy machine those
    may be a fifth of its own: that would measure the machine.
    """
    losses, steps = together(groups, kinds)
    for host, kind, made, loss in zip(groups.hosts, kinds, steps, losses, strict=True):
        diary = tmp_path / f"alone-{host.name}"
        Path(f"{diary}.stop").touch()
        by_itself = {**os.environ, "GOSSIPDP_OFF": "1", "GOSSIPDP_HOME": str(host.home)}
        subprocess.run(groups.command(diary, kind, made), env=by_itself, check=True, capture_output=True)
        alone = json.loads(Path(f"{diary}.0").read_text().splitlines()[-1])["validation"]
        print(f"{kind} alone: {alone:.3f} nats after {made} steps")
        assert loss < alone, f"{kind}: {loss:.3f} nats together, {alone:.3f} alone"


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_killed_in_an_exchange__the_other_host_goes_on_and_the_hurt_one_comes_back(
    groups: Groups, rank: int
) -> None:
    """Kill the first rank, which talks to the daemon, at a point of an exchange. Kill another between two steps."""
    other, hurt = groups.hosts
    point = {"GOSSIPDP_KILL_AT": "training: chunk 7 sent@3"} if rank == 0 else {}
    groups.start(("ddp", "ddp"), 100_000, **point)
    until("both train", lambda: all(groups.notes(host, 1, "step") for host in groups.hosts), groups.hosts)
    if rank:
        until("they exchange", lambda: hurt.exchanges() >= 3, groups.hosts)
        os.kill(groups.notes(hurt, rank, "begin")[-1]["process"], signal.SIGKILL)
    until("a rank has been killed and is named", lambda: "GD-501" in hurt.text(), groups.hosts)
    assert f"rank {rank} of the training group" in hurt.text().partition("GD-501")[2].splitlines()[0]
    last = groups.notes(hurt, rank, "step")[-1]["at"]

    def after(moment: float, event: str) -> list[dict]:
        return [note for note in groups.notes(hurt, 1, event) if note["at"] > moment]

    begun = until("the hurt host's ranks begin again", lambda: after(last, "begin"), groups.hosts)
    trained = until("and train", lambda: after(begun[0]["at"], "step"), groups.hosts)
    steps = [note for note in groups.notes(other, 0, "step") if note["at"] >= last - 1.0]
    longest = max(pause(step, later) for step, later in itertools.pairwise(steps))
    away = trained[0]["at"] - last
    print(f"rank {rank}: trains again {away:.1f} s after the kill; the other's longest pause {longest:.2f} s")
    assert longest < PAUSE
    assert begun[0]["digest"] == groups.notes(hurt, 0, "begin")[-1]["digest"]
    daemon = hurt.status()
    assert daemon["incarnation"] == 1 and other.member("h1")["state"] == "alive", "the daemon has stayed a member"
