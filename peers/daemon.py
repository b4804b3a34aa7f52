"""The peer daemon of one host: reads the home, builds the node, answers the control socket, obeys signals.

Run as ``python -m peers.daemon --home HOME``; `supervisor` does that. It is the peer: training processes come and go.
Nothing of the protocol, and no torch, may be here.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import logging
import secrets
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from gossipdp import config as configuration
from gossipdp.algorithms.epidemic.epidemic import Epidemic
from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.codecs import CODECS, kernels
from gossipdp.codecs.increments import kernels as kernels_sparse
from gossipdp.config import Config
from gossipdp.errors import ConfigError, DataError, GossipdpError, refused_here
from gossipdp.protocol.epidemic.broadcast import RumoursConfig
from gossipdp.protocol.epidemic.epidemic import SpreadingConfig
from gossipdp.protocol.membership import membership
from gossipdp.protocol.pairwise.averaging import AveragingConfig
from gossipdp.protocol.pairwise.exchange import Deadlines
from gossipdp.protocol.pairwise.matching import MatchingConfig
from gossipdp.protocol.peer import Peer, PeerConfig
from gossipdp.protocol.transfer.bootstrap import Held
from gossipdp.protocol.transfer.source import TransferConfig
from gossipdp.protocol.wire.messages import Member, State, short
from gossipdp.runtime import descriptors, files
from gossipdp.runtime.home_paths import expanded
from gossipdp.runtime.link import LinkServer
from gossipdp.runtime.network.addresses import advertised, doubt
from gossipdp.runtime.network.duplicate_identity import OvertakenError
from gossipdp.runtime.network.identity import Identity, NetworkSecret, count_from, next_incarnation
from gossipdp.runtime.network.refusals import Doors
from gossipdp.runtime.network.transport import Transport, TransportLimits
from gossipdp.runtime.node import Node, NodeConfig
from gossipdp.runtime.observability.metrics import Metrics
from gossipdp.runtime.storage.store import Store
from peers import home as homes
from peers import logs
from peers.control import ControlServer, Request
from peers.memory import usable
from peers.version import SOFTWARE

log = logging.getLogger("gossipdp.daemon")

MEMBERS = "members.json"
RETRY = 75
"""EX_TEMPFAIL: exit code where a later start may work. The disk was full or read-only, or members took a copy of this
home for the later one."""
BYTES_PER_PARAMETER = 10
"""anchor, momentum and some: what a daemon needs at the least"""

TIMINGS: dict[str, dict[str, Any]] = {
    "local": {
        "membership": membership.LOCAL,
        "deadlines": Deadlines(ask=0.5, silence=4.0, doubt=1.0),
        "matching": MatchingConfig(answer=0.5, pause=0.02, longest_pause=0.5),
        "transfer": TransferConfig(manifest=10.0, chunk=1.0, silence=4.0, witness=2.0),
        "rumours": RumoursConfig(again=1.0, wait=0.3, patience=1.5, sync=1.0),
        "resume_after": 10.0,
    },
    "lan": {
        "membership": membership.LAN,
        "deadlines": Deadlines(ask=1.0, silence=10.0, doubt=3.0),
        "matching": MatchingConfig(),
        "transfer": TransferConfig(),
        "rumours": RumoursConfig(again=2.0, wait=0.5, patience=3.0, sync=2.0),
        "resume_after": 30.0,
    },
    "wan": {
        "membership": membership.WAN,
        "deadlines": Deadlines(ask=4.0, silence=30.0, doubt=10.0),
        "matching": MatchingConfig(answer=2.0, pause=0.1, longest_pause=4.0),
        "transfer": TransferConfig(manifest=60.0, chunk=20.0, silence=60.0, window=16, witness=30.0),
        "rumours": RumoursConfig(),
        "resume_after": 30.0,
        "links": {"handshake": 4.0, "connect": 8.0, "hello": 6.0},  # three round trips, and lost packets
    },
}
"""What [membership] timing means beyond membership itself; seconds."""


class Control:
    """Answers the control socket from the I/O loop."""

    def __init__(self, server: ControlServer, node: Node, home: Path, config: Config) -> None:
        self._server, self._node, self._home, self._config = server, node, home, config

    def filenos(self) -> Sequence[int]:
        return self._server.filenos()

    def close(self) -> None:
        self._server.close()

    def handle(self, fd: int) -> None:
        for request in self._server.handle(fd):
            try:
                if (answer := self._answer(request)) is not None:
                    request.reply(answer)
            except (GossipdpError, OSError) as error:
                request.fail(told(error))

    def _answer(self, request: Request) -> dict[str, Any] | None:
        """None: the answer comes later."""
        match request.verb:
            case "status":
                return {**self._node.status.describe(), "saving": self._node.saving}
            case "members":
                return {"members": self._node.status.members()}
            case "invite":
                seeds = self._node.status.seeds()
                path = homes.write_invite(self._home, seeds, self._config)
                return {"path": str(path), "seeds": seeds}
            case "checkpoint":
                begun = self._node.checkpoint(partial(self._saved, request))
                return None if begun else {"saved": ""}
        self._node.leave()
        return {"leaving": True}

    @staticmethod
    def _saved(request: Request, outcome: Path | DataError) -> None:
        request.reply({"saved": str(outcome)}) if isinstance(outcome, Path) else request.fail(outcome)


class Signals:
    """SIGTERM and SIGINT, seen by the I/O loop through a descriptor. SIGHUP is ignored: the supervisor acts on it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._read, write = socket.socketpair()
        for end in (self._read, write):
            end.setblocking(False)
        self._write = write
        signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def filenos(self) -> Sequence[int]:
        return [self._read.fileno()]

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        self._read.close()
        self._write.close()

    def handle(self, fd: int) -> None:
        numbers = self._read.recv(64)
        if signal.SIGTERM in numbers or signal.SIGINT in numbers:
            log.info("leaving: told to stop")
            self._node.leave()


def algorithm_of(config: Config) -> Pairwise | Epidemic:
    if config.exchange.strategy == "pairwise":
        return Pairwise(clip=config.safety.clip_factor)
    return Epidemic(bad=config.exchange.robust_share)


def peer_config(config: Config) -> PeerConfig:
    """What the operator wrote, as the protocol takes it."""
    timing = TIMINGS[config.membership.timing]
    exchange, outer = config.exchange, config.outer
    memory, settings = usable(), configuration.settings_digest(config)
    # Where increments land epochs later nothing is gained by short rounds.
    warmup_steps = 0 if exchange.rule else exchange.warmup_steps
    return PeerConfig(
        membership=timing["membership"],
        algorithm=exchange.strategy,
        spreading=SpreadingConfig(
            rumours=replace(
                timing["rumours"],
                run=settings,
                span=exchange.epoch_steps,
                retain=config.safety.memory_limit(memory),
            ),
            compressor=exchange.compressor,
            whole_until=warmup_steps,
            lr=config.lr,
            beta=exchange.residual,
            rule=exchange.rule,
        ),
        averaging=AveragingConfig(
            fineness={name: codec.fineness for name, codec in CODECS.items()},
            settings=settings,
            keys=tuple(configuration.agreed(config)),
            weight=exchange.weight,
            rate=exchange.bandwidth,
            window=exchange.window,
            matching=replace(
                timing["matching"],
                schedule="" if exchange.partners == "random" else exchange.partners,
                ahead=exchange.mode != "sync",
            ),
            deadlines=timing["deadlines"],
        ),
        transfer=replace(timing["transfer"], max_parameters=memory // BYTES_PER_PARAMETER),
        every=exchange.every,
        codec=exchange.codec,
        bits=exchange.bits,
        moments=exchange.moments,
        sync=exchange.mode == "sync",
        lr=outer.lr,
        momentum=outer.momentum,
        kappa=exchange.kappa,
        warmup_steps=warmup_steps,
        early_steps=exchange.early_until,
        early_exchanges=exchange.early_exchanges,
        resume_after=timing["resume_after"],
        apart_rounds=exchange.apart_rounds,
    )


def address_to_advertise(config: Config, port: int) -> tuple[str, str]:
    """``host:port`` for others to dial, "" for a peer that only dials out; and why."""
    wish = config.network.advertise
    if port == 0 or wish == "none":
        return "", "outbound-only: nobody can dial this peer"
    if wish != "auto":
        with_port = wish if wish.rpartition(":")[2].isdigit() and ":" in wish else f"{wish}:{port}"
        return with_port, "as configured"
    host = config.network.listen.removeprefix("tcp://").rpartition(":")[0]
    return advertised(host, port, config.network.seeds)


def metrics_address(metrics: Metrics, listen: str) -> str:
    if listen == "off":
        return ""
    host, port = metrics.serve(listen)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"


def build(home: Path, config: Config) -> Node:
    """The node of `home`, bound and named, not yet joined."""
    belonging = homes.belonging(home)
    if belonging is None:
        raise ConfigError("GD-314", "this home belongs to no network", seen=str(home), do="`gossipdp up` or `join`")
    control = ControlServer(home)  # first: its lock says that no other daemon has this home
    identity, secret = keys_of(home)
    incarnation = next_incarnation(home)
    store = Store(home / config.checkpoint.dir, keep=config.checkpoint.keep)
    run = _run(home, store, belonging.name)
    # What may fail comes before the link: whoever finds its socket takes the daemon for started.
    metrics, (remembered, damaged) = Metrics(), _remembered(home / MEMBERS)
    scraped = metrics_address(metrics, config.metrics.listen)
    listen = None if config.network.listen == "off" else config.network.listen
    patience = TIMINGS[config.membership.timing].get("links", {})
    limits = TransportLimits(total_bytes=config.safety.memory_limit(usable()), **patience)
    transport = Transport(
        identity,
        secret,
        network=belonging.name,
        run=run,
        incarnation=incarnation,
        listen=listen,
        allowed=frozenset(map(bytes.fromhex, config.safety.allow)),
        banned=frozenset(map(bytes.fromhex, config.safety.ban)),
        limits=limits,
    )
    address, why = address_to_advertise(config, transport.port)
    transport.advertise(address)
    name = config.network.peer if config.network.peer != "auto" else f"{socket.gethostname()[:30]}-{short(identity.id)}"
    me = Member(identity.id, name, address, incarnation, 0, State.ALIVE, software=SOFTWARE)

    def found_run() -> bytes:
        new = secrets.token_bytes(16)
        files.save_run(home / "run", new)
        return new

    peer = Peer(
        peer_config(config),
        me,
        random=Random(secrets.randbits(64)),
        sign=identity.sign,
        verify=Identity.verify,
        now=time.monotonic(),
        admits=transport.admits,
    )
    node = Node(
        NodeConfig(
            network=belonging.name,
            checkpoint_every=config.checkpoint.every,
            mode=config.exchange.mode,
            deadline=config.exchange.deadline,
            heal=config.safety.heal,
            waiting=2 * limits.total_bytes,
        ),
        peer,
        algorithm_of(config),
        transport=transport,
        link=LinkServer(home),
        store=store,
        metrics=metrics,
        incarnation=incarnation,
        learned_run=lambda learned: files.save_run(home / "run", learned),
        found_run=found_run,
        remember=lambda members: _remember(home / MEMBERS, members),
    )
    node.serve_data(home)
    node.add(Control(control, node, home, config))
    node.add(Signals(node))
    node.status.address, node.status.home, node.status.metrics = address, str(home), scraped
    log.info("peer %s, incarnation %d, at %s (%s)", short(identity.id), incarnation, address or "no address", why)
    if transport.scarce:
        node.notice("GD-104", transport.scarce)
    if damaged:
        node.notice("GD-603", damaged)
    unsure = doubt(address, config.network.listen.removeprefix("tcp://").rpartition(":")[0], config.network.seeds)
    if unsure is not None:
        node.notice(unsure.code, f"{unsure.cause}: {unsure.seen}; {unsure.do}")
    _start(node, home, config, founder=belonging.founder and not run, store=store, remembered=remembered)
    return node


def keys_of(home: Path) -> tuple[Identity, NetworkSecret]:
    """This peer's key and its network's secret. Raises ConfigError GD-206: one is missing or damaged."""
    try:
        return Identity.load(home), NetworkSecret.load(home)
    except FileNotFoundError as error:
        do = "restore it from a backup; `gossipdp join` with an invite brings network.secret back"
        raise ConfigError("GD-206", "a key file is missing", seen=str(error.filename), do=do) from None


def _run(home: Path, store: Store, network: str) -> bytes:
    """The run this home belongs to, or b"": then it may found one. Who holds a checkpoint has belonged to one, and
    founds no other, whatever became of the file that says so."""
    run = files.load_run(home / "run") or b""
    newest = store.newest()
    if not run and newest is not None and newest[1].network == network and newest[1].run:
        run = bytes.fromhex(newest[1].run)
        files.save_run(home / "run", run)
        log.warning("the run %s of this home is known from %s only", run.hex()[:8], newest[0])
    return run


def _remember(path: Path, members: Sequence[Member]) -> None:
    """Keep who could be dialled, for a restart without seeds."""
    kept = [files.Remembered(id=m.id.hex(), name=m.name, address=m.address) for m in members if m.address]
    files.save_members(path, kept)


def _remembered(path: Path) -> tuple[list[Member], str]:
    """Members to be dialled, and what to tell if their file was damaged: seeds will do, too."""
    try:
        kept = files.load_members(path)
    except DataError as error:
        return [], files.set_aside(path, error)
    # Of a member remembered only its address counts: incarnation 0 gives way to whatever it says of itself.
    return [Member(bytes.fromhex(known.id), known.name, known.address, 0, 0, State.FAILED) for known in kept], ""


def _start(
    node: Node, home: Path, config: Config, *, founder: bool, store: Store, remembered: Sequence[Member]
) -> None:
    if founder:
        node.peer.found()
        log.info("this peer founds the network %s with its first training process's model", config.network.name)
        homes.write_invite(home, (node.status.address,), config)
    else:
        homes.renew_invite(home, node.status.address, [member.address for member in remembered], config)
    now = time.monotonic()
    seeds = [] if founder else list(config.network.seeds)
    newest = store.newest()
    resume = None
    if newest is None and not remembered:
        node.doors = Doors(seeds)
    if newest is not None and not founder:
        path, meta = newest
        node.holds(path, store.saved_at(path))
        resume = Held(meta.clock, min(meta.round, 0xFFFF_FFFF))
        log.info("the newest checkpoint here is of step %d of the network's clock, round %d", *resume)
    elif node.run_id:
        text = f"there is no checkpoint in {store.dir}: the model can only come from another member of this run"
        node.notice("GD-604", text)
    node.peer.join(seeds, now, remembered=remembered, resume=resume)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m peers.daemon", description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="overrides the file")
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    parser.add_argument("--verbose", action="store_true", help="one line an exchange")
    return parser.parse_args(argv)


def overrides(pairs: Sequence[str]) -> Mapping[str, str]:
    parted = [pair.partition("=") for pair in pairs]
    return {key: value for key, _, value in parted}


def told(error: GossipdpError | OSError) -> GossipdpError:
    """`error` with a code."""
    if isinstance(error, GossipdpError):
        return error
    return refused_here(error)


def failed(error: GossipdpError) -> int:
    """Say it; the exit code."""
    log.error("%s", error, extra={"code": error.code})
    again = error.code in ("GD-505", "GD-602") or isinstance(error, OvertakenError)
    return RETRY if again else error.exit_code


def overtaken(home: Path, error: OvertakenError) -> int:
    """Start anew, with a number that nobody takes for the past; the exit code."""
    try:
        count_from(home, error.incarnation)
    except OSError as trouble:
        return failed(told(trouble))
    except GossipdpError as trouble:
        return failed(trouble)
    return failed(error)


def keep_memory() -> None:
    """Have malloc keep what chunks and their temporaries used: to map and fault it in anew each time costs more
    than the work on it. glibc only; elsewhere nothing changes."""
    trim_threshold, mmap_threshold, arena_max = -1, -3, -8
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(arena_max, 1)
        libc.mallopt(mmap_threshold, 32 << 20)
        libc.mallopt(trim_threshold, 256 << 20)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(sys.argv[1:] if argv is None else argv)
    logs.configure(arguments.home.name, arguments.log_format, verbose=arguments.verbose)
    keep_memory()
    try:
        home = expanded(arguments.home).absolute()
        descriptors.claim()
        config = homes.read_config(home, overrides(arguments.set))
        kernels.warm_up()  # before anybody can wait for this peer
        if config.exchange.strategy == "epidemic":
            kernels_sparse.warm_up()
        node = build(home, config)
        me = node.peer.membership.me
        logs.configure(me.name, arguments.log_format, id=me.id.hex(), verbose=arguments.verbose)
    except (GossipdpError, OSError) as error:
        return failed(told(error))
    try:
        node.run()
    except GossipdpError as error:
        return overtaken(home, error) if isinstance(error, OvertakenError) else failed(error)
    finally:
        node.close()
    log.info("left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
