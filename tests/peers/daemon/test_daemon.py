"""The start of the daemon: founding, resuming, and its notices and errors."""

import errno
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from gossipdp.errors import RETRY, ConfigError, DataError, HardwareError, RefusedError
from gossipdp.protocol import jobs
from gossipdp.protocol.course.table import Reason
from gossipdp.protocol.events import ResyncBegan, ResyncEnded
from gossipdp.protocol.schema import Schema
from gossipdp.runtime import files
from gossipdp.runtime.link import Link, Report
from gossipdp.runtime.network.dial_causes import Cause
from gossipdp.runtime.network.events import DialFailed, LinkUp
from gossipdp.runtime.network.identity import OPERATOR_FILE, Identity, NetworkSecret
from gossipdp.runtime.network.invite import Invite
from gossipdp.runtime.node import Node
from gossipdp.runtime.unix_sockets import socket_path as link_path
from peers import advertising, assembly, daemon, home, invites, services
from peers.control import socket_path
from peers.home import HomeNetwork
from peers.home_records import MEMBERS
from peers.supervisor import FINAL
from tests.peers.daemon.homes_and_nodes import RUN, NoSignals, Start, asked, held, noticed, save, shown


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
    shunned = [node.peer._strikes.shuns(peer, 0.0) for peer in (friend, foe, b"\x0c" * 32)]
    node.close()
    assert given[0]["admission"].lists == ({friend, node.peer.id}, {foe})
    assert shunned == [False, True, True], "nor is anything offered to these"


def test_new_home_in_which_up_was_said_founds(start: Start) -> None:
    assert start().peer.view.founds


def test_home_that_has_founded_never_founds_again(where: Path, start: Start) -> None:
    files.save_run(where / "run", RUN)
    save(where, 120)
    node = start()
    assert not node.peer.view.founds and held(node) == (120, 12) and node.run_id == RUN


@pytest.mark.parametrize(("own", "before"), [(True, 140), (False, 0)])
def test_rounds_go_on_from_the_own_checkpoint__and_not_from_that_of_another_peer(
    where: Path, start: Start, own: bool, before: int
) -> None:
    files.save_run(where / "run", RUN)
    save(where, 140, peer=Identity.load(where).id.hex() if own else "cd" * 32)
    node = start()
    mine = node.peer.view.own_progress
    assert (node.status.round, mine.steps, mine.samples, mine.clock) == (before // 20, before, before, 0)
    node.peer._progress.report(clock=150, steps=10, samples=10, rounds=1)
    assert node.status.members()[0]["round"] == node.status.describe()["round"] == before // 20 + 1


def test_home_whose_run_file_is_lost_founds_nothing_while_a_checkpoint_names_the_run(where: Path, start: Start) -> None:
    save(where, 120)
    node = start()
    assert not node.peer.view.founds and held(node) == (120, 12) and node.run_id == RUN
    assert files.load_run(where / "run") == RUN


def test_checkpoint_of_another_network_or_of_no_run_names_none(where: Path, start: Start) -> None:
    save(where, 120, network="other")
    save(where, 120, run=b"")
    node = start()
    assert node.peer.view.founds and node.run_id == b""


def test_home_of_a_run_without_a_checkpoint_waits_for_others_and_says_so(where: Path, start: Start) -> None:
    files.save_run(where / "run", RUN)
    node = start()
    assert not node.peer.view.founds and held(node) is None
    assert [notice[:6] for notice in shown(node.status)] == ["GD-604"] and noticed(node) == {"GD-604": 1.0}


def test_port_that_is_taken_is_found_before_training_processes_are_listened_for(
    where: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(*_: object) -> str:
        raise HardwareError("GD-104", "the port is taken")

    monkeypatch.setattr(assembly, "web_address", taken)
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
@pytest.mark.parametrize("name", [MEMBERS, "data.json"])
def test_damaged_memory_of_members_or_data__set_aside_and_told(
    where: Path, start: Start, name: str, damage: bytes | None
) -> None:
    if damage is None:
        (where / name).mkdir()
    else:
        (where / name).write_bytes(damage)
    node = start()
    assert [notice[:6] for notice in shown(node.status)] == ["GD-603"] and noticed(node) == {"GD-603": 1.0}
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
    invites.write_invite(where, ["127.0.0.1:9", "192.0.2.7:4710"], config)
    node = start()
    brought = invites.read_invite((where / "invite").read_text()).invite
    assert brought.seeds == (node.peer.view.me.address, "192.0.2.7:4710")


def test_few_descriptors_that_cut_the_links_are_told(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gossipdp.runtime.descriptors.resource.getrlimit", lambda _: (512, 512))
    node = start()
    assert shown(node.status)[:1] == ["GD-104 512 open files are enough for 40 links of 128"]
    assert "ulimit -n" in node.status.describe()["do"]["GD-104"]


def test_address_that_others_hardly_reach_is_told_and_counted(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    doubt = ConfigError("GD-103", "others can probably not reach this peer", seen="127.0.0.1:4710", do="set advertise")
    monkeypatch.setattr(assembly, "doubt", lambda *_: doubt)
    node = start()
    assert noticed(node) == {"GD-103": 1.0}
    assert shown(node.status) == ["GD-103 others can probably not reach this peer: 127.0.0.1:4710; set advertise"]


@pytest.mark.parametrize("port", ["4710", "22"])
def test_container_of_a_marketplace__its_mapped_address_goes_into_the_record_and_the_invite(
    where: Path, port: str
) -> None:
    flags = {"network.name": "tiny", "preset": "local", "network.listen": "tcp://127.0.0.1:0", "metrics.listen": "off"}
    config = home.read_config(where, flags, {})
    environment = {"VAST_TCP_PORT_22": "33526", "PUBLIC_IPADDR": "8.8.4.4"}
    choice = advertising.addresses_to_advertise(config, int(port), environment)
    node = assembly.build(where, config, environment)
    try:
        status, seeds = node.status.describe(), invites.read_invite((where / "invite").read_text()).invite.seeds
        # Port 0 took a free port, which is not mapped.
        assert seeds == (status["address"],) and status["address_why"] == "the address it listens on"
        (notice,) = status["notices"]
        assert notice.startswith("GD-103 others can probably not reach this peer: Vast.ai maps no outside port")
    finally:
        node.close()
    assert choice.addresses == (("8.8.4.4:33526",) if port == "22" else ("127.0.0.1:4710",))


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
    (notice,) = shown(node.status)
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
        files.save_members(where / MEMBERS, [files.Remembered(id="ab" * 32, name="b", address="127.0.0.1:8")])
    node = start()
    if met == "link":
        node._network.handle(LinkUp(b"b" * 32, seed, False, 1), 0.0)
    refused = DialFailed(b"", seed, (Cause("GD-204", "refused this peer's key").at(seed),))
    for now in (1.0, 2.0):
        node._network.handle(refused, now)
    with pytest.raises(RefusedError, match="GD-204 every address") if met is None else nullcontext():
        node._network.handle(refused, 3.0)


def test_resyncs_are_counted_and_shown(where: Path, start: Start) -> None:
    files.save_run(where / "run", RUN)
    node = start()
    node._act(ResyncBegan(Reason.LAG, 4, 0), 0.0)
    node._act(ResyncEnded(Reason.LAG, b"p" * 32, True, 3.0), 0.0)
    shown = node.status.describe()
    assert (shown["resyncs"], shown["resyncing"], shown["apart"]) == ({"lag": 1}, "", 0)
    assert shown["consensus_ratio"] is None
    assert node._metrics.registry.get_sample_value("gossipdp_resyncs_total", {"reason": "lag"}) == 1.0


def unwritable(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, "Read-only file system")


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
    def build(*_: object, **__: object) -> Node:
        raise error

    monkeypatch.setattr(daemon, "build", build)
    monkeypatch.setattr(daemon, "keep_memory", lambda: None)
    monkeypatch.setattr(daemon.kernels, "warm_up", lambda: None)
    monkeypatch.setattr(daemon.logs, "configure", lambda *_, **__: None)
    assert daemon.main(["--home", str(where)]) == code
    assert caplog.records[-1].getMessage().startswith("GD-") and RETRY not in FINAL


def test_joining_anothers_network_of_the_same_name_gives_up_founding(where: Path) -> None:
    invite = Invite(network="tiny", secret=NetworkSecret.generate(), seeds=("10.0.0.1:4710",))
    home.join(where, invite, None)
    assert home.network_of(where) == HomeNetwork(name="tiny", founder=False, seeds=("10.0.0.1:4710",))


def test_founder_that_joins_by_its_own_invite_stays_the_founder(where: Path) -> None:
    invite = Invite(network="tiny", secret=NetworkSecret.load(where), seeds=("10.0.0.1:4710",))
    operator = Identity.load(where, OPERATOR_FILE).id.hex()
    home.join(where, invite, None)
    known = HomeNetwork(name="tiny", founder=True, seeds=("10.0.0.1:4710",), operator=operator)
    assert home.network_of(where) == known


def test_memory_that_cuda_does_not_pin_is_a_notice_and_a_metric(start: Start, where: Path) -> None:
    node, trainer = start(), Link.connect(where)
    trainer.hello(Schema.of([("w", (700,), "float32", "parameter")]))
    while trainer.region is None:
        node._turn()
        trainer.receive()
    for unpinned in (3 * 10**9, 3 * 10**9, 0):
        trainer.send(Report(0, unpinned=unpinned))
    while not any("GD-508 CUDA cannot pin 3.00 GB" in told for told in node.status.describe()["notices"]):
        node._turn()
    assert noticed(node)["GD-508"] == 1
    trainer.close()
