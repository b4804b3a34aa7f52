"""Builds the node of a home: keys, transport, peer, stores and services."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from gossipdp.config import AUTO, Config
from gossipdp.errors import ConfigError
from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.peer import Peer
from gossipdp.protocol.transfer.claims import Held
from gossipdp.protocol.wire.messages import CARRIES, MAX_OTHERS, RELAY, Member, Progress, State, short
from gossipdp.runtime import decisions_file, files
from gossipdp.runtime.link import LinkServer
from gossipdp.runtime.network.addresses import Choice, doubt
from gossipdp.runtime.network.identity import Identity, NetworkSecret
from gossipdp.runtime.network.incarnation import next_incarnation
from gossipdp.runtime.network.limits import LIMITS
from gossipdp.runtime.network.proxy import proxy_of
from gossipdp.runtime.network.transport import Transport
from gossipdp.runtime.node import Node, NodeConfig, NodeParts
from gossipdp.runtime.observability import history
from gossipdp.runtime.observability.history import History
from gossipdp.runtime.observability.metrics import Metrics
from gossipdp.runtime.observability.page.published import Published
from gossipdp.runtime.observability.page.site import METRICS
from gossipdp.runtime.room import Room
from gossipdp.runtime.storage.checkpoint import CheckpointMeta
from gossipdp.runtime.storage.spill import Spill
from gossipdp.runtime.storage.store import Store
from peers import home as homes
from peers import invites
from peers.advertising import addresses_to_advertise, listen_host
from peers.control import ControlServer
from peers.final import FinalFiles
from peers.home import HomeNetwork
from peers.home_records import HomeRecords, remembered
from peers.log_file import log_file
from peers.memory import usable
from peers.own_addresses import OwnAddresses
from peers.services import Control, Signals
from peers.settings import memory_plan, pairwise, peer_config, workers
from peers.version import SOFTWARE

__all__ = ["build"]


log = logging.getLogger("gossipdp.daemon")


class _Kept(NamedTuple):
    """What earlier starts of this peer left in its home."""

    network: HomeNetwork
    run: bytes
    """b"" if this peer has not belonged to a run"""
    newest: tuple[Path, CheckpointMeta] | None
    """the newest checkpoint"""
    members: list[tuple[Member, float]]
    """members that can be dialled, and the seconds for which each is known"""
    decisions: decisions_file.Kept
    """of the network's operator"""
    damage: tuple[str, ...]
    """notices about damaged files"""

    @property
    def founds(self) -> bool:
        """Whether this peer gives a new network its first model."""
        return self.network.founder and not self.run

    @property
    def fresh(self) -> bool:
        """Whether no training process can have attached to this peer before."""
        return not self.run and self.newest is None


def build(
    home: Path, config: Config, environment: Mapping[str, str] = {}, *, supervisor: int = 0, trains: bool = False
) -> Node:
    """Build the node of `home`. It is bound and has a name, and looks for the network once it runs.

    Args:
        environment: variables of this host or container, for `addresses.choose`.
        supervisor: pid of the supervisor; 0 without one.
        trains: a training command is started along with this peer.

    Raises:
        ConfigError: GD-206, GD-314.
        HardwareError: GD-104, another daemon runs for this home.
        DataError: GD-602, GD-603.
    """
    network = homes.network_of(home)
    if network is None:
        raise ConfigError("GD-314", "this home belongs to no network", seen=str(home), do="`gossipdp up` or `join`")
    control = ControlServer(home)  # first: its lock excludes a second daemon of this home
    identity, secret = keys_of(home)
    incarnation = next_incarnation(home)
    store = Store(home / config.checkpoint.dir, keep=config.checkpoint.keep)
    final = FinalFiles(home, config, store, supervisor)
    kept = _kept(home, store, network)
    # The link is made last: its socket tells the supervisor that this daemon has started.
    metrics, published = Metrics(), Published()
    web = web_address(metrics, config.metrics.listen, published)
    admission = _admission(config, identity, kept)
    transport = _transport(config, identity, secret, kept, incarnation, admission)
    choice = addresses_to_advertise(config, transport.port, environment)
    transport.advertise(choice.addresses, search=config.network.advertise == (AUTO,))
    transport.carry(config.network.carries)
    peer = Peer(
        peer_config(config),
        _member(config, identity, choice.addresses, incarnation),
        random=Random(secrets.randbits(64)),
        sign=identity.sign,
        verify=Identity.verify,
        now=time.monotonic(),
        admission=admission,
    )
    spill = Spill(store.dir)
    room = Room(memory_plan(config), trains=trains and kept.fresh, disk=spill.free)
    node = Node(
        NodeParts(
            config=_node_config(home, config, kept, web, choice.why, trains),
            peer=peer,
            admission=admission,
            algorithm=pairwise(config, spill.keep),
            transport=transport,
            link=LinkServer(home, partial(room.shortage, attaches=True)),
            room=room,
            store=store,
            metrics=metrics,
            spill=spill,
            incarnation=incarnation,
            records=HomeRecords(home, config),
            history=History(home / history.FILE),
            published=published,
            outside=final,
        )
    )
    node.add(Control(control, node, admission, home, config, final))
    node.add(Signals(node, supervisor))
    if config.network.advertise == (AUTO,) and transport.port:
        node.add(OwnAddresses(node, home, config, choice, transport.port, environment))
    where = ", ".join(choice.addresses) or "no address"
    log.info("peer %s, incarnation %d, at %s (%s)", short(identity.id), incarnation, where, choice.why)
    _give_notice(node, config, transport, choice, kept, admission.foreign)
    _renew_invite(home, config, choice.addresses, kept)
    _start(node, config, store, kept)
    return node


# -- parts -------------------------------------------------------------------------------------------------------


def keys_of(home: Path) -> tuple[Identity, NetworkSecret]:
    """This peer's key and its network's secret. Raises ConfigError GD-206: a file is missing or damaged."""
    try:
        return Identity.load(home), NetworkSecret.load(home)
    except FileNotFoundError as error:
        do = "restore it from a backup; `gossipdp join` with an invite brings network.secret back"
        raise ConfigError("GD-206", "a key file is missing", seen=str(error.filename), do=do) from None


def web_address(metrics: Metrics, listen: str, published: Published) -> str:
    """Serve `metrics` and the status page at `listen`, and return the URL. Return "" if `listen` is "off"."""
    if listen == "off":
        return ""
    host, port = metrics.serve(listen, published)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _admission(config: Config, identity: Identity, kept: _Kept) -> Admission:
    return Admission(
        identity.id,
        network=kept.network.name,
        operator=bytes.fromhex(kept.network.operator),
        verify=Identity.verify,
        allowed=frozenset(map(bytes.fromhex, config.safety.allow)),
        banned=frozenset(map(bytes.fromhex, config.safety.ban)),
        decisions=kept.decisions.decisions,
        receipts=kept.decisions.receipts,
    )


def _transport(
    config: Config,
    identity: Identity,
    secret: NetworkSecret,
    kept: _Kept,
    incarnation: int,
    admission: Admission,
) -> Transport:
    return Transport(
        identity,
        secret,
        network=kept.network.name,
        run=kept.run,
        incarnation=incarnation,
        listen=None if config.network.listen == "off" else config.network.listen,
        admission=admission,
        proxy=proxy_of(config.network.proxy, config.network.proxy_login),
        limits=replace(LIMITS[config.membership.timing], total_bytes=config.safety.memory_limit(usable())),
    )


def _member(config: Config, identity: Identity, addresses: Sequence[str], incarnation: int) -> Member:
    """What this peer tells the other members about itself."""
    name = homes.peer_name(config, identity)
    first, others = (addresses[0], tuple(addresses[1:])) if addresses else ("", ())
    if config.network.carries:
        others = (*others[: MAX_OTHERS - 1], RELAY if config.network.relay_only else CARRIES)
    return Member(identity.id, name, first, incarnation, 0, State.ALIVE, software=SOFTWARE, others=others)


def _node_config(home: Path, config: Config, kept: _Kept, web: str, why: str, trains: bool) -> NodeConfig:
    alone = kept.newest is None and not kept.members and not kept.founds
    return NodeConfig(
        network=kept.network.name,
        home=str(home),
        log=str(log_file(home, "peer")),
        metrics=f"{web}{METRICS}" if web else "",
        page=f"{web}/" if web else "",
        address_why=why,
        trains=trains,
        only_seeds=config.network.seeds if alone else (),
        checkpoint_every=config.checkpoint.every,
        mode=config.exchange.mode,
        deadline=config.exchange.deadline,
        heal=config.safety.heal,
        workers=workers(config),
        waiting=2 * config.safety.memory_limit(usable()),
    )


# -- the home's files --------------------------------------------------------------------------------------------


def _kept(home: Path, store: Store, network: HomeNetwork) -> _Kept:
    newest = store.newest()
    members, damaged_members = remembered(home)
    decisions = decisions_file.load_decisions(home)
    damage = tuple(text for text in (damaged_members, decisions.damage) if text)
    return _Kept(network, _run(home, network.name, newest), newest, members, decisions, damage)


def _run(home: Path, network: str, newest: tuple[Path, CheckpointMeta] | None) -> bytes:
    """The run this home belongs to. Without one, b"": only then may this peer found one.

    A checkpoint proves that the home belongs to a run even if the file that names the run is lost.
    """
    run = files.load_run(home / homes.RUN) or b""
    if not run and newest is not None and newest[1].network == network and newest[1].run:
        run = bytes.fromhex(newest[1].run)
        files.save_run(home / homes.RUN, run)
        log.warning("restored the run id %s of this home from the checkpoint %s", run.hex()[:8], newest[0])
    return run


# -- the start ---------------------------------------------------------------------------------------------------


def _give_notice(node: Node, config: Config, transport: Transport, choice: Choice, kept: _Kept, foreign: int) -> None:
    """foreign: kept decisions of another operator."""
    if transport.scarce:
        node.notice("GD-104", transport.scarce)
    if config.removed:
        keys = ", ".join(f"{key} ({origin})" for key, origin in config.removed.items())
        node.notice("GD-312", f"keys of an earlier version have no effect and can be removed: {keys}")
    for text in kept.damage:
        node.notice("GD-603", text)
    if foreign:
        text = f"{foreign} kept decisions about members do not count: another operator made them, not the one followed"
        node.notice("GD-207", text)
    doubts = [doubt(address, listen_host(config), config.network.seeds) for address in choice.addresses]
    unsure = None if None in doubts else next(iter(doubts), None)
    if choice.lacks:
        node.notice("GD-103", f"others can probably not reach this peer: {choice.lacks}")
    elif unsure is not None:
        node.notice(unsure.code, f"{unsure.cause}: {unsure.seen}; {unsure.do}")


def _renew_invite(home: Path, config: Config, addresses: Sequence[str], kept: _Kept) -> None:
    if kept.founds:
        # Whether anybody can dial a founder is not known yet, so its invite also names the members that it dials.
        invites.write_invite(home, [*addresses, *config.network.seeds], config)
    else:
        invites.renew_invite(
            home, addresses, [address for member, _ in kept.members for address in member.addresses], config
        )


def _counted(peer: bytes, meta: CheckpointMeta) -> Progress | None:
    """This peer's rounds, steps and samples by its checkpoint. Members that run may remember more."""
    if meta.peer != peer.hex():
        return None
    return Progress(peer, 0, meta.steps, meta.samples, min(meta.peer_rounds, 0xFFFF_FFFF))


def _start(node: Node, config: Config, store: Store, kept: _Kept) -> None:
    """Tell the peer whether it founds the network, and where it looks for it."""
    if kept.founds:
        log.info("founding the network %s: its first model is that of the first training process", kept.network.name)
    resume = counted = None
    if kept.newest is not None and not kept.founds:
        path, meta = kept.newest
        node.holds(path, store.saved_at(path))
        resume = Held(meta.clock, min(meta.round, 0xFFFF_FFFF))
        log.info("newest checkpoint: network clock %d steps, round %d", meta.clock, meta.peer_rounds)
        counted = _counted(node.peer.id, meta)
    elif node.run_id:
        text = f"there is no checkpoint in {store.dir}: the model can only come from another member of this run"
        node.notice("GD-604", text)
    members, known = [member for member, _ in kept.members], {member.id: seconds for member, seconds in kept.members}
    # Seeds of a founder are relays that join later. No other peer has the secret of its network.
    node.peer.join(
        list(config.network.seeds),
        time.monotonic(),
        founds=kept.founds,
        remembered=members,
        known=known,
        resume=resume,
        counted=counted,
    )
