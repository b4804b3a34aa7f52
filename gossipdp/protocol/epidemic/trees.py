"""The trees of the broadcast: which neighbour is pushed an increment, which only hears its name, and which is asked.

Plumtree (Leitao, Pereira, Rodrigues 2007, "Epidemic broadcast trees", section 3): eager push along the links of a tree,
lazy push of names along the others, PRUNE of a link that brings a duplicate, GRAFT of one that has what is missing.
There is one tree for each origin, and an answer lists the parts that are here (see `broadcast`). `incoming` decides
whether an increment counts and whether a part is the signed one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from gossipdp.protocol.epidemic.config import BroadcastConfig
from gossipdp.protocol.epidemic.epochs import Epochs
from gossipdp.protocol.epidemic.fetching import Fetches
from gossipdp.protocol.epidemic.link import HEADER, Link
from gossipdp.protocol.epidemic.links import Links
from gossipdp.protocol.epidemic.store import Record, Store
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire.epidemic_messages import (
    MAX_NAMES,
    MAX_WANTS,
    Got,
    Graft,
    IHave,
    Prune,
    Rumour,
    RumourPart,
    Want,
)

__all__ = ["Known", "Trees"]

SHORTER: Final = 3
"""hops by which another path must be shorter to replace the present one (Leitao et al. 2007, section 3.8)"""
PATIENT: Final = 4.0
"""patience with a sender, in units of the usual gap between two of its parts"""
LONGEST: Final = 16.0
"""largest patience, in units of the least"""


class Known(NamedTuple):
    """What one peer knows of the increments, and of the neighbours that they pass through."""

    epochs: Epochs
    links: Links
    store: Store
    fetches: Fetches


class Trees:
    """The trees as one peer sees them.

    Args:
        counts: counters that the broadcast shares.
    """

    def __init__(
        self,
        config: BroadcastConfig,
        known: Known,
        *,
        outputs: Outputs,
        counts: Counter[str],
    ) -> None:
        self._epochs, self._links, self._store, self._fetches = known
        self._wait, self._least = config.wait, config.patience
        self._outputs, self._counts = outputs, counts

    # -- inputs -----------------------------------------------------------------------------------------------

    def receive(self, message: Got | IHave | Graft | Prune, source: bytes, now: float) -> None:
        """Handle a message of the trees from `source`."""
        match message:
            case Got(name, have):
                link = self._links.get(source)
                if link is not None:
                    link.answered(name, have, now)
                    self._pump(link, now)
            case IHave():
                self._announced(message, source, now)
            case Graft(wants):
                self._graft(wants, source, now)
            case Prune():
                self._prune(message, source, now)

    def timer(self) -> float:
        """When a fetch or a link needs attention."""
        return min([self._fetches.timer(), *(link.timer() for link in self._links if link.pushes)])

    def handle_timer(self, now: float) -> None:
        """Send lost items again."""
        for link in self._links:
            if link.pushes and link.handle_timer(now):
                self._pump(link, now)

    def shown(self, record: Record, source: bytes, now: float) -> None:
        """The first header of an increment came: ask for the payload, and push the header on at once."""
        self._fetches.shown(record.name, record.rumour.epoch, source, now, self._patience(source))
        link = self._links.get(source)
        if link is not None:
            # Increments of this origin need not be pushed back there.
            link.set_eager(record.rumour.origin, False)
        self._outputs.send(source, Got(record.name, 0))
        self.offer(record, now)

    def part_stored(self, record: Record, source: bytes, now: float) -> None:
        """A part came, and is in the store: answer, and push it on."""
        name = record.name
        since = self._fetches.moved(name, now)
        link = self._links.get(source)
        if link is not None:
            link.received(since, now)
        self._outputs.send(source, Got(name, record.have))
        if record.complete:
            fetch = self._fetches.end(name)
            self.announce(record, fetch.holders if fetch is not None else ())
        for link in self._links:
            if name in link.pushes:
                self._pump(link, now)

    def show(self, proof: Iterable[Rumour], to: bytes) -> None:
        """Send a proof, the contradicting headers, to one peer."""
        for rumour in proof:
            self._outputs.send(to, rumour)

    def forget(self, name: bytes) -> None:
        """Stop to fetch, store and push an increment."""
        self._fetches.end(name)
        self._store.drop(name)
        self._links.stop(name)

    # -- pushing ----------------------------------------------------------------------------------------------

    def offer(self, record: Record, now: float) -> None:
        """Push an increment along the tree, and its header over untried links."""
        origin = record.rumour.origin
        for link in self._links.neighbours():
            if link.peer != origin and link.eager.get(origin) is not False:
                link.push(record)
                self._pump(link, now)

    def announce(self, record: Record, holders: Iterable[bytes]) -> None:
        """An increment is complete: send its name to the neighbours that it is not pushed to."""
        told = {*holders, record.upstream, record.rumour.origin}
        message = IHave(record.rumour.epoch, (record.name,), min(255, record.hops + 1))
        for link in self._links.neighbours():
            if record.name not in link.pushes and link.peer not in told:
                self._outputs.send(link.peer, message)

    def _pump(self, link: Link, now: float) -> None:
        while (item := link.next(now)) is not None:
            record, part = item[0].record, item[1]
            if part == HEADER:
                header = replace(record.rumour, hops=min(255, record.hops + 1))
                self._outputs.send(link.peer, header, [record.table])
            else:
                self._outputs.send(link.peer, RumourPart(record.name, part), [record.parts[part]])

    def _announced(self, message: IHave, source: bytes, now: float) -> None:
        epoch = message.epoch
        if not self._epochs.admits(epoch) or source not in self._links.live:
            return
        kept = self._epochs.of(epoch)
        for name in message.names:
            record = self._store.get(name)
            if record is not None and record.hops >= message.hops + SHORTER and record.upstream:
                self._shorten(record, source, message.hops)
            if not kept.holds(name) and not self._fetches.announced(name, epoch, source, now, self._wait):
                self._counts["endless"] += 1

    def _shorten(self, record: Record, source: bytes, hops: int) -> None:
        """There is a path with fewer hops: take the next increments of this origin over it."""
        self._outputs.send(record.upstream, Prune((record.name,)))
        self._outputs.send(source, Graft((Want(record.name, record.have),)))
        record.reroute(source, hops)
        fetch = self._fetches.get(record.name)
        if fetch is not None:
            self._fetches.switch(fetch, source)

    def _graft(self, wants: Iterable[Want], source: bytes, now: float) -> None:
        link = self._links.serve(source)
        denied = []
        for name, have in ((want.name, want.have) for want in wants):
            record = self._store.get(name)
            proof = next((p for each in self._epochs.live() if (p := each.proof(name))), ())
            if proof:
                self.show(proof, source)
            elif record is None or link is None or not link.graft(record, have):
                denied.append(name)
        for start in range(0, len(denied), MAX_NAMES):
            self._outputs.send(source, Prune(tuple(denied[start : start + MAX_NAMES])))
        if link is not None:
            self._pump(link, now)

    def _prune(self, message: Prune, source: bytes, now: float) -> None:
        link = self._links.get(source)
        if not message.link:
            self._links.refused_by(source)
        for name in message.names:
            record = self._store.get(name)
            if link is not None:
                link.stop(name)
                if record is not None:
                    link.set_eager(record.rumour.origin, False)
            self._fetches.denied(name, source, now)
        if link is not None:
            self._pump(link, now)

    def step(self, now: float) -> None:
        """After every other input: use room that links got, and ask other holders for late increments."""
        for freed in self._links.freed():
            self._pump(freed, now)
        due = self._fetches.due(now)
        if not due:
            return
        asks: defaultdict[bytes, list[Want]] = defaultdict(list)
        for fetch in due:
            record, before = self._store.get(fetch.name), fetch.source
            link = self._links.get(before)
            if self._fetches.waits(fetch, link.part_at if link else float("-inf"), self._patience(before), now):
                continue
            source = self._fetches.turn(fetch, self._least, now)
            if source:
                asks[source].append(Want(fetch.name, record.have if record is not None else 0))
            elif record is None:
                self._fetches.end(fetch.name)
            if before and before != source:
                self._outputs.send(before, Prune((fetch.name,)))
        self._fetches.looked()
        for peer, wants in asks.items():
            for start in range(0, len(wants), MAX_WANTS):
                self._outputs.send(peer, Graft(tuple(wants[start : start + MAX_WANTS])))

    def _patience(self, peer: bytes) -> float:
        """Seconds to wait for the next part from `peer`; longer on a slow link."""
        link = self._links.get(peer)
        return max(self._least, min(PATIENT * link.gap, LONGEST * self._least) if link is not None else 0.0)
