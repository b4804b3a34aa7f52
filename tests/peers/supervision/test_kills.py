"""Every set of supervisor, guard, daemon and training command killed at once, and what the user does then.

The training command is a launcher with a rank in a session of its own. Both ignore SIGTERM.
"""

import itertools
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from peers import rest
from peers.cli import main
from peers.processes import ticks
from peers.supervisor_file import DAEMON, GUARD, SUPERVISOR, TRAINING, Named, Recorded, read
from simulations.processes.namespaces.processes import ROOT
from simulations.processes.progress import until
from tests.peers.supervision.supervised import DAEMON as STAND_IN
from tests.peers.supervision.supervised import LAUNCHER, LEAVE, STUBBORN, WAIT, Running

pytestmark = pytest.mark.processes

GRACE = 0.3
PARTS = (SUPERVISOR, GUARD, DAEMON, TRAINING)
KILLED = [set(some) for count in range(1, 5) for some in itertools.combinations(PARTS, count)]
LEFT = [killed for killed in KILLED if killed >= {SUPERVISOR, GUARD, DAEMON}]
LEAVES = f"""
supervisor = os.getppid()
def leave():
    say('daemon leaves')
    if os.getppid() == supervisor: sys.exit(0)
    sys.path[:0] = {[str(ROOT), *(str(Path(psutil.__file__).parents[1]),)]!r}
    from pathlib import Path
    from peers import rest
    rest.Policy.grace = {GRACE}
    rest.end_unguarded(Path(os.environ['GOSSIPDP_HOME']), supervisor)
    sys.exit(0)
"""
"""A daemon that ends as the real one does."""
OLDER = LEAVES + STAND_IN.replace(LEAVE, "leave()") + WAIT
RANK = STUBBORN + "say('rank', os.getpid())\n" + WAIT
RANKS = LAUNCHER + STUBBORN + f"launch({RANK!r}); say('launcher', os.getpid())\n" + WAIT


QUICK = [killed for killed in KILLED if len(killed) == 1 or killed in LEFT or killed == {SUPERVISOR, GUARD}]


def marked(cases: list[set[str]]) -> list[Any]:
    return [pytest.param(each, id=named(each), marks=[] if each in QUICK else pytest.mark.long) for each in cases]


def named(killed: set[str]) -> str:
    return "+".join(part.partition(" ")[0] for part in PARTS if part in killed)


class Peer:
    """A supervisor in `home` with all that it runs."""

    def __init__(self, supervise: type[Running], home: Path) -> None:
        self.running, self.home = supervise(OLDER, RANKS, grace=GRACE), home
        self.pids = {DAEMON: self.running.number("daemon")}
        self.ranks = self.running.numbers("launcher", "rank")
        self.pids |= {TRAINING: self.ranks["launcher"], SUPERVISOR: self.running.process.pid, GUARD: self.living(GUARD)}

    @property
    def recorded(self) -> Recorded:
        found = read(self.home)
        assert found is not None
        return found

    def living(self, part: str) -> int:
        return self.recorded.living(part)

    def kill(self, parts: set[str]) -> None:
        """Kill these parts at once: none can act on the death of another."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for part in parts:
                os.kill(self.pids[part], number)
        if SUPERVISOR in parts:
            self.running.code()
        until("they are dead", lambda: not any(ticks(self.pids[part]) for part in parts), [])

    def lives_again(self, killed: set[str]) -> bool:
        now = {part: self.living(part) for part in PARTS}
        return all(now[part] and (now[part] != self.pids[part]) == (part in killed) for part in PARTS)


@pytest.fixture
def peer(supervise: type[Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Peer:
    monkeypatch.setattr(rest.Policy, "grace", GRACE)
    return Peer(supervise, tmp_path)


def command(home: Path, *words: str) -> int:
    return main(["--home", str(home), *words])


@pytest.mark.parametrize("killed", marked([each for each in KILLED if SUPERVISOR not in each]))
def test_supervisor_lives__it_replaces_what_was_killed_and_leave_ends_all(
    peer: Peer, killed: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    peer.kill(killed)
    until("all parts live", lambda: peer.lives_again(killed))
    alive = [pid for pid in peer.ranks.values() if ticks(pid)]
    assert len(alive) == (0 if TRAINING in killed else 2), "one training command at a time"
    assert command(peer.home, "up", "--network", "n") == 7 and "GD-104" in capsys.readouterr().err
    assert command(peer.home, "status") == 4 and "starts it" in capsys.readouterr().err
    assert command(peer.home, "leave") == 0
    assert not rest.supervisor(peer.home), "`up` may follow at once"
    peer.running.rest()
    assert peer.running.code() == 0


@pytest.mark.parametrize("killed", marked([each for each in KILLED if SUPERVISOR in each and each not in LEFT]))
def test_supervisor_killed_and_guard_or_daemon_lives__it_ends_all(peer: Peer, killed: set[str]) -> None:
    peer.kill(killed)
    seen = rest.absence(peer.home)
    assert seen is None or "is being ended" in seen.seen
    peer.running.rest()
    assert rest.left(peer.home) == "" and rest.absence(peer.home) is None


@pytest.mark.parametrize("then", ["up", "leave"])
@pytest.mark.parametrize("killed", LEFT, ids=named)
def test_supervisor_guard_and_daemon_killed__the_next_command_ends_a_training_that_ignores_sigterm(
    peer: Peer, killed: set[str], then: str, supervise: type[Running], capsys: pytest.CaptureFixture[str]
) -> None:
    peer.kill(killed)
    left = peer.ranks["rank"]
    for words in ("status", "finish", "members"):
        assert command(peer.home, words) == 4
        said = capsys.readouterr().err
        assert "was killed, and what it started still runs: training command" in said and str(left) in said
    if then == "leave":
        assert command(peer.home, "leave") == 0
        assert str(left) in capsys.readouterr().err
        peer.running.rest()
    else:
        again = Peer(supervise, peer.home)
        assert not ticks(left), "it ends before another one starts"
        peer.running.rest()
        assert "the last supervisor of this home was killed; ending what it has left: training" in again.running.log()
        assert again.living(TRAINING) == again.pids[TRAINING]
    assert rest.left(peer.home) == ""


def test_up_at_once_after_the_supervisor_was_killed__waits_for_the_end_of_the_old_parts(
    peer: Peer, supervise: type[Running]
) -> None:
    peer.kill({SUPERVISOR})
    again = Peer(supervise, peer.home)
    assert not [pid for pid in (*peer.ranks.values(), peer.pids[DAEMON]) if ticks(pid)]
    assert peer.running.rest() == ["daemon leaves"]
    again.running.process.send_signal(signal.SIGTERM)
    again.running.rest()
    assert again.running.code() == 0


def test_copy_of_a_home_names_no_process_of_the_original(peer: Peer) -> None:
    copy = peer.home.with_name("copy")
    copy.mkdir()
    shutil.copy(peer.home / "supervisor.json", copy)
    assert read(peer.home) is not None and read(copy) is None


def test_number_that_another_process_has_now_is_not_taken_for_the_old_one(peer: Peer) -> None:
    earlier = {TRAINING: Named(peer.pids[TRAINING], peer.recorded.processes[TRAINING].since - 1)}
    assert Recorded(boot="", place=(0, 0), mark="mark", processes=earlier).living(TRAINING) == 0


def test_training_that_ends_at_sigterm__does_so_when_all_others_are_killed(supervise: type[Running]) -> None:
    training = "on('SIGTERM', lambda: (say('training ends'), sys.exit(1))); say('training', os.getpid())\n" + WAIT
    running = supervise(STAND_IN + WAIT, training)
    daemon = running.number("daemon")
    running.number("training")
    recorded = read(running.home)
    assert recorded is not None
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in (running.process.pid, recorded.living(GUARD), daemon):
            os.kill(pid, number)
    assert running.rest() == ["training ends"], "told once"
