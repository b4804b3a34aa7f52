"""What the daemon makes of a home: who founds, who goes on, and what becomes of a checkpoint that is ahead."""

from __future__ import annotations

import errno
import json
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

import numpy as np
import psutil
import pytest

from gossipdp.config_loading import load
from gossipdp.errors import RETRY, ConfigError, DataError, HardwareError, RefusedError
from gossipdp.protocol import jobs
from gossipdp.protocol.events import CheckpointAhead, ResyncBegan, ResyncEnded
from gossipdp.protocol.membership.signatures import Signer
from gossipdp.protocol.model import Model
from gossipdp.protocol.partition.reasons import Reason
from gossipdp.protocol.schema import MOST_EXACT, Schema
from gossipdp.protocol.settings_digest import keys_apart
from gossipdp.protocol.wire.messages import Member, Ping, State
from gossipdp.runtime import files
from gossipdp.runtime.network.identity import Identity, NetworkSecret
from gossipdp.runtime.network.transport import DialFailed, LinkUp
from gossipdp.runtime.node import Node
from gossipdp.runtime.storage.checkpointer import PIECE
from gossipdp.runtime.storage.store import CheckpointMeta, Store
from gossipdp.runtime.unix_sockets import socket_path as link_path
from peers import assembly, daemon, home, memory, services
from peers import settings as protocol_settings
from peers.control import ControlServer, socket_path
from peers.home import HomeNetwork, Invite, NewNetwork
from peers.supervisor import FINAL

RUN = b"\x07" * 16
Start = Callable[[], Node]


@pytest.fixture
def where(tmp_path: Path) -> Path:
    """A home in which `up` has been said."""
    path = tmp_path / "home"
    config = home.read_config(path, {"network.name": "tiny", "preset": "local"}, {})
    home.found(path, config, None)
    return path


@pytest.fixture
def start(where: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts the daemon of that home, up to its loop; signals stay the test's."""
    open_ones: list[Node | ControlServer] = []

    def control(directory: Path) -> ControlServer:
        open_ones.append(ControlServer(directory))
        return open_ones[-1]

    def started() -> Node:
        overrides = {
            "network.name": "tiny", "preset": "local", "network.listen": "tcp://127.0.0.1:0", "metrics.listen": "off"
        }  # fmt: skip
        node = assembly.build(where, home.read_config(where, overrides, {}))
        open_ones.append(node)
        return node

    monkeypatch.setattr(assembly, "ControlServer", control)
    monkeypatch.setattr(assembly, "Signals", NoSignals)
    yield started
    for one in open_ones:
        one.close()


class NoSignals:
    def __init__(self, node: Node) -> None:
        pass

    def filenos(self) -> list[int]:
        return []

    def close(self) -> None:
        pass


def save(where: Path, clock: int, run: bytes = RUN, network: str = "tiny") -> Path:
    meta = CheckpointMeta(
        network=network, run=run.hex(), peer="cd" * 32, incarnation=1, round=clock // 10, clock=clock, steps=clock,
        samples=clock, schema="ef" * 16,
    )  # fmt: skip
    arrays = {"anchor": np.ones(8, np.float32), "momentum": np.zeros(8, np.float32)}
    return Store(where / "checkpoints").save(arrays, meta, b"schema")


def test_terminal_hangs_up__the_daemon_ignores_it() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before, descriptor = {number: signal.getsignal(number) for number in numbers}, signal.set_wakeup_fd(-1)
    try:
        signals = services.Signals(cast(Node, None))
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signals._read.close()
        signals._write.close()
    finally:
        signal.set_wakeup_fd(descriptor)
        for number, action in before.items():
            signal.signal(number, action)


def test_who_is_allowed_and_who_is_banned_is_what_the_configuration_says(
    where: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    friend, foe = b"\x0a" * 32, b"\x0b" * 32
    given: list[dict[str, Any]] = []
    made = assembly.Transport

    def transport(*arguments: Any, **options: Any) -> Any:
        given.append(options)
        return made(*arguments, **options)

    monkeypatch.setattr(assembly, "Transport", transport)
    flags = {
        "network.name": "tiny", "network.listen": "off", "metrics.listen": "off",
        "safety.allow": friend.hex(), "safety.ban": foe.hex(),
    }  # fmt: skip
    node = assembly.build(where, home.read_config(where, flags, {}))
    shunned = [node.peer.strikes.shuns(peer, 0.0) for peer in (friend, foe, b"\x0c" * 32)]
    node.close()
    assert (given[0]["allowed"], given[0]["banned"]) == ({friend}, {foe})
    assert shunned == [False, True, True], "nor is anything offered to these"


def test_new_home_in_which_up_was_said_founds(start: Start) -> None:
    assert start().peer.founds


def test_home_that_has_founded_never_founds_again(where: Path, start: Start) -> None:
    files.save_run(where / "run", RUN)
    save(where, 120)
    node = start()
    assert not node.peer.founds and node.peer.resumes == (120, 12) and node.run_id == RUN


def test_home_whose_run_file_is_lost_founds_nothing_while_a_checkpoint_names_the_run(where: Path, start: Start) -> None:
    save(where, 120)
    node = start()
    assert not node.peer.founds and node.peer.resumes == (120, 12) and node.run_id == RUN
    assert files.load_run(where / "run") == RUN


def test_checkpoint_of_another_network_or_of_no_run_names_none(where: Path, start: Start) -> None:
    save(where, 120, network="other")
    save(where, 120, run=b"")
    node = start()
    assert node.peer.founds and node.run_id == b""


def test_home_of_a_run_without_a_checkpoint_waits_for_others_and_says_so(where: Path, start: Start) -> None:
    files.save_run(where / "run", RUN)
    node = start()
    assert not node.peer.founds and node.peer.resumes is None
    assert [notice[:6] for notice in node.status.notices] == ["GD-604"] and noticed(node) == {"GD-604": 1.0}


def test_checkpoint_ahead_of_the_network_is_pinned_and_both_clocks_are_told(where: Path, start: Start) -> None:
    files.save_run(where / "run", RUN)
    save(where, 90)
    path = save(where, 120)
    node = start()
    node._act(CheckpointAhead(120, 12, 80), 0.0)
    store = Store(where / "checkpoints", keep=1)
    assert store.pinned(path) and [store.pinned(each) for each in store.list()] == [False, True]
    [notice] = node.status.notices
    assert notice.startswith("GD-605 ") and "step 80 " in notice and "step 120" in notice and str(path) in notice
    save(where, 81)
    save(where, 82)
    store.prune()
    assert [Store.verify(each).meta.clock for each in store.list()] == [120, 82]


def test_fifth_checkpoint_ahead_costs_the_first_its_pin_and_that_is_told(where: Path, start: Start) -> None:
    files.save_run(where / "run", RUN)
    first = save(where, 100)
    node = start()
    for clock in (100, 200, 300, 400, 500):
        if clock > 100:
            save(where, clock)
        node._act(CheckpointAhead(clock, clock // 10, 80), 0.0)
    assert [notice[:6] for notice in node.status.notices] == ["GD-605"] * 5 + ["GD-606"]
    assert str(first) in node.status.notices[-1]
    assert noticed(node) == {"GD-605": 5.0, "GD-606": 1.0}


def test_checkpoint_that_cannot_be_looked_at_is_told_and_the_peer_goes_on(where: Path, start: Start) -> None:
    node = start()
    (where / "checkpoints").write_bytes(b"no directory")
    node._act(CheckpointAhead(120, 12, 80), 0.0)
    assert [notice[:6] for notice in node.status.notices] == ["GD-601"] and noticed(node) == {"GD-601": 1.0}
    assert node._jobs.restore()[0] is None


def test_checkpoint_that_could_not_be_written_is_told_counted_and_tried_again_soon(where: Path, start: Start) -> None:
    node = start()
    now = node._clock()
    node._checkpoints.due = now + node._checkpoints._config.checkpoint_every
    node._checkpoints.saved(DataError("GD-602", "checkpoint-00000001 could not be written", seen="No space left"))
    assert list(node.status.notices) == ["GD-602 checkpoint-00000001 could not be written"]
    assert noticed(node) == {"GD-602": 1.0}
    assert 0.05 < (node._checkpoints.due - now) / node._checkpoints._config.checkpoint_every < 0.5
    node._checkpoints.writer.busy = True
    node._checkpoints.due = now
    node._tick(now)
    assert "still being written" in node.status.notices[-1] and noticed(node) == {"GD-602": 2.0}
    assert node._checkpoints.due == now + node._checkpoints._config.checkpoint_every


@pytest.mark.parametrize("reason", ["apart", "lag"])
def test_peer_that_gives_its_model_up_goes_on_once_that_is_saved_and_pinned(
    where: Path, start: Start, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    files.save_run(where / "run", RUN)
    node = start()
    begun: list[bool] = []
    done: list[jobs.Job] = []
    asked = iter([jobs.Keep(reason)])
    monkeypatch.setattr(node._checkpoints, "save", lambda: begun.append(True) or True)
    monkeypatch.setattr(node.peer, "next_job", lambda: next(asked, None))
    monkeypatch.setattr(node.peer, "job_done", lambda job, result, now: done.append(job))
    node._checkpoints.writer.busy = True
    node._drain(0.0)
    assert not begun
    node._checkpoints.writer.busy = False
    node._checkpoints.saved(save(where, 90))
    assert begun == [True] and not done
    path = save(where, 100)
    node._checkpoints.saved(path)
    assert done == [jobs.Keep(reason)]
    pinned = reason == "apart"
    assert Store.pinned(path) == pinned and noticed(node) == {"GD-604": 1.0, **({"GD-607": 1.0} if pinned else {})}
    node._checkpoints.saved(save(where, 110))
    assert len(done) == 1


def test_peer_whose_model_cannot_be_saved_follows_all_the_same(
    where: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.save_run(where / "run", RUN)
    node = start()
    done: list[jobs.Job] = []
    monkeypatch.setattr(node._checkpoints, "save", lambda: True)
    monkeypatch.setattr(node.peer, "job_done", lambda job, result, now: done.append(job))
    node._checkpoints.keep(jobs.Keep("apart"))
    node._checkpoints.saved(DataError("GD-602", "checkpoint-00000001 could not be written", seen="No space left"))
    assert done == [jobs.Keep("apart")] and noticed(node) == {"GD-604": 1.0, "GD-602": 1.0}


def test_of_a_model_that_is_half_another_s_no_checkpoint_is_made(
    where: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start()
    saved: list[bool] = []
    monkeypatch.setattr(node._checkpoints, "save", lambda: saved.append(True) or True)
    schema = Schema.of([("w", (300,), "float32", "parameter")])
    node.peer.model = Model.of(schema.to_bytes(), bytes(16), MOST_EXACT, 0, 0)
    node.peer._replica._reunion.follower.reason = Reason.LAG
    assert not node.checkpoint() and not saved
    node.peer._replica._reunion.follower.reason = None
    assert node.checkpoint() and saved == [True]


@pytest.mark.parametrize(("text", "rounds"), [("", 10), ("[exchange]\napart_rounds = 3\n", 3)])
def test_rounds_after_which_a_side_is_apart_are_the_operators_to_set(text: str, rounds: int) -> None:
    assert protocol_settings.peer_config(load(text)).apart_rounds == rounds


def test_memory_is_the_containers(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=1 << 40))
    monkeypatch.setattr(memory, "limit", lambda: 1 << 30)
    peer = protocol_settings.peer_config(load('[exchange]\nalgorithm = "epidemic"\n'))
    assert peer.transfer.max_parameters == (1 << 30) // 10 and peer.strategy.broadcast.retain <= 1 << 30
    assert start()._transport.limits.total_bytes <= 1 << 30


def test_port_that_is_taken_is_found_before_training_processes_are_listened_for(
    where: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(*_: object) -> str:
        raise HardwareError("GD-104", "the port is taken")

    monkeypatch.setattr(assembly, "metrics_address", taken)
    with pytest.raises(HardwareError):
        start()
    assert not link_path(where).exists()


@pytest.mark.parametrize("name", ["identity.key", "network.secret"])
@pytest.mark.parametrize("how", ["missing", "a folder"])
def test_key_missing_or_a_folder__the_start_ends_for_good(where: Path, start: Start, name: str, how: str) -> None:
    (where / name).unlink()
    if how == "a folder":
        (where / name).mkdir(mode=0o700)
    with pytest.raises(ConfigError, match="GD-206") as caught:
        start()
    assert str(where / name) in caught.value.seen
    assert daemon.failed(services.with_code(caught.value)) == ConfigError.exit_code  # not RETRY


@pytest.mark.parametrize("damage", [b"", b"[]]", b"\0" * 100, None])
@pytest.mark.parametrize("name", [assembly.MEMBERS, "data.json"])
def test_damaged_memory_of_members_or_data__set_aside_and_told(
    where: Path, start: Start, name: str, damage: bytes | None
) -> None:
    if damage is None:
        (where / name).mkdir()
    else:
        (where / name).write_bytes(damage)
    node = start()
    assert [notice[:6] for notice in node.status.notices] == ["GD-603"] and noticed(node) == {"GD-603": 1.0}
    assert (where / f"{name}.damaged").exists() and not (where / name).exists()


def test_daemon_has_left__its_sockets_are_gone(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "Signals", NoSignals)
    flags = {"network.name": "tiny", "network.listen": "off", "metrics.listen": "off"}
    node = assembly.build(where, home.read_config(where, flags, {}))
    assert socket_path(where).exists() and link_path(where).exists()
    node.close()
    assert not socket_path(where).exists() and not link_path(where).exists()


def test_started_at_another_port__its_invite_names_that(where: Path, start: Start) -> None:
    files.save_run(where / "run", RUN)
    config = home.read_config(where, {"network.name": "tiny", "preset": "local"}, {})
    home.write_invite(where, ["127.0.0.1:9", "192.0.2.7:4710"], config)
    node = start()
    brought = home.read_invite((where / "invite").read_text()).invite
    assert brought.seeds == (node.peer.membership.me.address, "192.0.2.7:4710")


def test_few_descriptors_that_cut_the_links_are_told(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gossipdp.runtime.descriptors.resource.getrlimit", lambda _: (512, 512))
    node = start()
    assert list(node.status.notices)[:1] == ["GD-104 512 open files are enough for 40 links of 128"]
    assert "ulimit -n" in node.status.describe()["do"]["GD-104"]


def test_address_that_others_hardly_reach_is_told_and_counted(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    doubt = ConfigError("GD-103", "others will hardly reach this peer", seen="127.0.0.1:4710", do="set advertise")
    monkeypatch.setattr(assembly, "doubt", lambda *_: doubt)
    node = start()
    assert noticed(node) == {"GD-103": 1.0}
    assert list(node.status.notices) == ["GD-103 others will hardly reach this peer: 127.0.0.1:4710; set advertise"]


def test_damaged_checkpoint_passed_over_at_a_restore_is_told_and_counted(
    where: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.save_run(where / "run", RUN)
    save(where, 120)
    (save(where, 240) / "state.safetensors").write_bytes(b"")
    node = start()
    _, notices = node._jobs._store.latest()
    monkeypatch.setattr(node.peer, "job_done", lambda *_: None)
    node._jobs.restored(jobs.Restore(), (None, notices))
    (notice,) = node.status.notices
    assert notice.startswith("GD-601 checkpoint ") and noticed(node) == {"GD-601": 1.0}


@pytest.mark.parametrize("met", [None, "checkpoint", "members", "link"])
def test_newcomer_turned_away_by_every_seed_ends__one_that_has_met_the_network_goes_on(
    where: Path, start: Start, monkeypatch: pytest.MonkeyPatch, met: str | None
) -> None:
    seed = "127.0.0.1:9"
    monkeypatch.setattr(home, "network_of", lambda _: HomeNetwork(name="tiny", founder=False, seeds=(seed,)))
    if met == "checkpoint":
        save(where, 120)
    if met == "members":
        files.save_members(where / assembly.MEMBERS, [files.Remembered(id="ab" * 32, name="b", address="127.0.0.1:8")])
    node = start()
    if met == "link":
        node._network.handle(LinkUp(b"b" * 32, seed, False, 1), 0.0)
    refused = DialFailed(b"", seed, f"{seed} refused this peer's key", "GD-204")
    for now in (1.0, 2.0):
        node._network.handle(refused, now)
    with pytest.raises(RefusedError, match="GD-204 every address") if met is None else nullcontext():
        node._network.handle(refused, 3.0)


def test_resyncs_are_counted_and_shown(where: Path, start: Start) -> None:
    files.save_run(where / "run", RUN)
    node = start()
    node._act(ResyncBegan("lag", 4, 0), 0.0)
    node._act(ResyncEnded("lag", b"p" * 32, True, 3.0), 0.0)
    shown = node.status.describe()
    assert (shown["resyncs"], shown["resyncing"], shown["apart"]) == ({"lag": 1}, "", 0)
    assert shown["consensus_ratio"] is None
    assert node._metrics.registry.get_sample_value("gossipdp_resyncs_total", {"reason": "lag"}) == 1.0


def unwritable(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, "Read-only file system")


def asked(node: Node, where: Path, verb: str) -> dict[str, Any]:
    """What the command line gets; the loop turns meanwhile."""
    with socket.socket(socket.AF_UNIX) as asker:
        asker.connect(str(socket_path(where)))
        asker.sendall(b'{"verb": "%s"}\n' % verb.encode())
        while not select.select([asker], [], [], 0.0)[0]:
            assert not node._finished
            node._turn()
        return dict(json.loads(asker.recv(1 << 20)))


@pytest.mark.parametrize(("call", "code"), [("os.fsync", "GD-602"), ("peers.home.NetworkSecret.load", "GD-505")])
def test_invite_that_cannot_be_written_is_an_answer_and_the_peer_goes_on(
    where: Path, start: Start, monkeypatch: pytest.MonkeyPatch, call: str, code: str
) -> None:
    node = start()
    with monkeypatch.context() as patched:
        patched.setattr(call, unwritable)
        answer = asked(node, where, "invite")
    assert answer["error"]["code"] == code and "Read-only" in answer["error"]["seen"]
    assert "reply" in asked(node, where, "status")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), RETRY),
        (DataError("GD-602", "incarnation could not be written"), RETRY),
        (DataError("GD-603", "damaged"), 8),
        (ConfigError("GD-314", "no network"), 3),
    ],
)
def test_start_that_fails_is_told__and_a_full_disk_may_be_cleaned(
    where: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, code: int
) -> None:
    def build(*_: object) -> Node:
        raise error

    monkeypatch.setattr(daemon, "build", build)
    monkeypatch.setattr(daemon, "keep_memory", lambda: None)
    monkeypatch.setattr(daemon.kernels, "warm_up", lambda: None)
    monkeypatch.setattr(daemon.logs, "configure", lambda *_, **__: None)
    assert daemon.main(["--home", str(where)]) == code
    assert caplog.records[-1].getMessage().startswith("GD-") and RETRY not in FINAL


class Slow(files.Files):
    """A disk that takes a piece of the model when it is let, and not before."""

    def __init__(self) -> None:
        self.let = threading.Semaphore(0)

    def write(self, file: IO[bytes], piece: memoryview) -> None:
        if piece.nbytes == 1024:
            self.let.acquire()
        super().write(file, piece)


class Leaving:
    """A peer with a model and a slow disk that has been told to leave, and whose time passes when the test says so."""

    def __init__(self, node: Node) -> None:
        self.node, self.disk, self.now = node, Slow(), node._clock()
        node._clock, node._jobs._store.files = lambda: self.now, self.disk
        schema = Schema.of([("w", (1024,), "float32", "parameter")])
        node._algorithm.allocate(schema.size, schema.trainable, 256)
        node.peer.model = Model.of(schema.to_bytes(), b"", 256, 0, 0)
        node.leave()
        self.live(2.0)
        assert node.status.leaving and node._checkpoints.writer.busy

    def live(self, seconds: float) -> None:
        for _ in range(10):
            self.now += seconds / 10
            if not self.node._finished:
                self.node._turn()

    def until(self, done: Callable[[], bool]) -> None:
        """No time passes, but for the disk."""
        while not done():
            threads = [self.node._checkpoints.writer, self.node._jobs]
            assert select.select(threads, [], [], 10.0)[0], "the disk is stuck"
            self.node._turn()

    def let(self, pieces: int) -> None:
        steps = self.node._checkpoints.writer.steps
        self.disk.let.release(pieces)
        self.until(lambda: self.node._checkpoints.writer.steps >= steps + pieces)


def test_address_that_does_not_answer_is_told_unless_its_member_has_left(start: Start) -> None:
    node, other = start(), Identity.generate()
    word = Member(other.id, "gone", "127.0.0.1:9", 1, 1, State.LEFT)
    word = Signer(other.sign, Identity.verify).sign_member(word)
    node.peer.membership.receive(Ping(1, (word,)), other.id, 0.0)
    for address in ("127.0.0.1:9", "127.0.0.1:11"):
        node._network.handle(DialFailed(b"", address, "refused", "GD-101"), 1.0)
    assert [notice.split(":")[:2] for notice in node.status.notices] == [["GD-101 127.0.0.1", "11"]]


@pytest.mark.parametrize("unsent", [0, 1])
def test_peer_that_leaves_ends_once_its_last_words_are_sent_or_after_a_while(
    unsent: int, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start()
    now = node._clock()
    node._clock = lambda: now
    monkeypatch.setattr(type(node._transport), "queued_bytes", unsent)
    node.leave()
    for _ in range(8):
        now += 0.1
        if not node._finished:
            node._turn()
    assert node._finished == (not unsent)
    now += 2.5
    if not node._finished:
        node._turn()
    assert node._finished


def test_peer_that_leaves_waits_for_its_last_checkpoint_as_long_as_that_moves(where: Path, start: Start) -> None:
    leaving = Leaving(start())
    for _ in range(8):
        leaving.live(7.0)
        told = asked(leaving.node, where, "status")["reply"]
        assert told["saving"] and told["state"] == "leaving" and not leaving.node._finished
        leaving.let(1)
    leaving.until(lambda: leaving.node._finished)
    assert leaving.node.status.checkpoint == str(Store(where / "checkpoints").list()[-1])
    assert not leaving.node.saving and not leaving.node.status.notices


def test_checkpoint_under_way_when_the_peer_is_told_to_leave_is_not_its_last(where: Path, start: Start) -> None:
    leaving = Leaving(start())
    leaving.node._final_checkpoint = False
    leaving.disk.let.release(16)
    leaving.until(lambda: len(leaving.node._jobs._store.list()) == 1)
    assert leaving.node.saving and not leaving.node._finished
    leaving.live(0.1)
    leaving.until(lambda: leaving.node._finished)
    assert len(Store(where / "checkpoints").list()) == 2


def test_last_checkpoint_on_a_disk_that_hangs_is_given_up_and_told(
    where: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving = Leaving(start())
    node = leaving.node
    leaving.let(2)
    leaving.live(PIECE - 1.0)
    assert node.saving and not node._finished
    leaving.live(2.0)
    assert node._finished
    leaving.disk.let.release(16)
    node.close()
    monkeypatch.setattr(node, "close", lambda: None)
    assert "given up" in node.status.notices[-1] and noticed(node) == {"GD-602": 1.0}
    assert list((where / "checkpoints").iterdir()) == []


def test_peer_that_is_not_leaving_is_not_saving__whatever_is_written(start: Start) -> None:
    node = start()
    node._checkpoints.writer.busy = True
    assert not node.saving


class Asked:
    """A request of the control socket."""

    verb = "checkpoint"

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.reply = self.fail = self.answers.append


def test_checkpoint_asked_for__answered_when_it_is_on_the_disk_or_could_not_be_written(
    where: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start()
    asked: list[Any] = [Asked() for _ in range(3)]
    control = services.Control(cast(ControlServer, SimpleNamespace(handle=lambda fd: [asked[fd]])), node, where, None)  # type: ignore[arg-type]
    monkeypatch.setattr(type(node.peer), "whole", property(lambda peer: True))
    monkeypatch.setattr(node._checkpoints, "save", lambda: True)
    control.handle(0)
    path, error = save(where, 90), DataError("GD-602", "checkpoint-00000002 could not be written", seen="No space left")
    assert asked[0].answers == [], "not yet"
    node._checkpoints.saved(path)
    control.handle(1)
    node._checkpoints.saved(error)
    node._checkpoints.writer.busy = True
    control.handle(2)
    assert [each.answers for each in asked] == [[{"saved": str(path)}], [error], [{"saved": ""}]]


def noticed(node: Node) -> dict[str, float]:
    """What `gossipdp_notices_total` says, by code."""
    samples = [sample for family in node._metrics.registry.collect() for sample in family.samples]
    return {sample.labels["code"]: sample.value for sample in samples if sample.name == "gossipdp_notices_total"}


def test_joining_anothers_network_of_the_same_name_gives_up_founding(where: Path) -> None:
    invite = Invite(network="tiny", secret=NetworkSecret.generate(), seeds=("10.0.0.1:4710",))
    home.join(where, NewNetwork(invite, ""), None)
    assert home.network_of(where) == HomeNetwork(name="tiny", founder=False, seeds=("10.0.0.1:4710",))


def test_founder_that_joins_by_its_own_invite_stays_the_founder(where: Path) -> None:
    invite = Invite(network="tiny", secret=NetworkSecret.load(where), seeds=("10.0.0.1:4710",))
    home.join(where, NewNetwork(invite, ""), None)
    assert home.network_of(where) == HomeNetwork(name="tiny", founder=True, seeds=("10.0.0.1:4710",))


@pytest.mark.parametrize("text", ["", '[exchange]\nalgorithm = "epidemic"\n'])
def test_keys_that_peers_share_are_told_so_that_those_which_differ_can_be_named(text: str) -> None:
    peer, other = (protocol_settings.peer_config(load(text, flags={"outer.lr": lr})) for lr in "12")
    assert keys_apart(peer.settings, other.settings, peer.keys) == ["outer.lr"]


def test_epidemic_is_what_the_configuration_says() -> None:
    text = '[exchange]\nalgorithm = "epidemic"\ncompressor = "topk64"\nresidual = 0.9\n'
    text += "epoch_steps = 40\nwarmup_steps = 30\n"
    peer = protocol_settings.peer_config(load(text))
    assert peer.algorithm == "epidemic" and peer.most_chunk == MOST_EXACT
    strategy = peer.strategy
    assert (strategy.compressor, strategy.beta, strategy.lr, strategy.whole_until) == ("topk64", 0.9, 2.0, 30)
    assert strategy.broadcast.span == 40 and strategy.broadcast.run == peer.settings
    assert protocol_settings.peer_config(load("")).algorithm == "pairwise"


def test_robust_rule_takes_away_the_warm_start() -> None:
    text = '[exchange]\nalgorithm = "epidemic"\nrobust = "nnm-median"\nrobust_share = 0.3\n'
    config = load(text)
    peer = protocol_settings.peer_config(config)
    strategy = peer.strategy
    assert (strategy.rule, strategy.lr, strategy.whole_until, peer.warmup_steps) == ("nnm-median", 1.0, 0, 0)
    assert protocol_settings.algorithm_of(config)._bad == 0.3  # type: ignore[union-attr]
