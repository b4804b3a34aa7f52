"""Builds the node of a home: keys, transport, peer, stores and services."""

from __future__ import annotations

import logging
import secrets
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from gossipdp.config import Config
from gossipdp.errors import ConfigError, DataError
from gossipdp.protocol.peer import Peer
from gossipdp.protocol.transfer.bootstrap import Held
from gossipdp.protocol.wire.messages import Member, State, short
from gossipdp.runtime import files
from gossipdp.runtime.link import LinkServer
from gossipdp.runtime.network.addresses import advertised, doubt
from gossipdp.runtime.network.identity import Identity, NetworkSecret
from gossipdp.runtime.network.incarnation import next_incarnation
from gossipdp.runtime.network.refusals import Refusals
from gossipdp.runtime.network.transport import Transport, TransportLimits
from gossipdp.runtime.node import Node, NodeConfig
from gossipdp.runtime.observability.metrics import Metrics
from gossipdp.runtime.storage.store import Store
from peers import home as homes
from peers.control import ControlServer
from peers.memory import usable
from peers.services import Control, Signals
from peers.settings import TIMINGS, algorithm_of, peer_config
from peers.version import SOFTWARE

__all__ = ["build"]

log = logging.getLogger("gossipdp.daemon")

MEMBERS = "members.json"


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
        node.refusals = Refusals(seeds)
    if newest is not None and not founder:
        path, meta = newest
        node.holds(path, store.saved_at(path))
        resume = Held(meta.clock, min(meta.round, 0xFFFF_FFFF))
        log.info("the newest checkpoint here is of step %d of the network's clock, round %d", *resume)
    elif node.run_id:
        text = f"there is no checkpoint in {store.dir}: the model can only come from another member of this run"
        node.notice("GD-604", text)
    node.peer.join(seeds, now, remembered=remembered, resume=resume)
