"""What the ranks of a group do when they read an announcement: each moves its part and reports to the daemon.

Every rank calls the same methods in the same order. Nothing here plans or announces.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

import torch
from torch import Tensor

from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.runtime import link as links
from gossipdp.training.optimizer_state.adam import AdamMoments
from gossipdp.training.optimizer_state.encoder import MomentsEncoder, Torn, spans_of
from gossipdp.training.optimizer_state.followed import Optimizers
from gossipdp.training.orders import Drain, Load, LoadState, Order, SendMoments, Write
from gossipdp.training.ranks.announcements import Announcement, Kind
from gossipdp.training.ranks.collectives import Collectives, whole_numbers
from gossipdp.training.ranks.comparison import Comparison, agree_on_model, checksums, replicas_differ
from gossipdp.training.ranks.follower import Follower
from gossipdp.training.session import Session
from gossipdp.training.tensors.blocks import torn
from gossipdp.training.tensors.layout import Layout
from gossipdp.training.tensors.streams import passed
from gossipdp.training.waiting import wait_for_moments

__all__ = ["GroupActions", "GroupMoves", "Spans"]


PIECE: Final = 4 << 20
"""parameters of one all-gather"""


class GroupMoves:
    """What the ranks of a group move together between the shared memory and tensors. Every method is collective.

    Of a tensor that all ranks hold (DDP, and the buffers under FSDP2), each rank brings its share from the shared
    memory, and an all-gather gives every rank the rest. Of a sharded tensor each rank brings its own rows. The
    arithmetic is the same on all ranks, so replicas stay equal bit for bit.
    """

    def __init__(self, layout: Layout, collectives: Collectives) -> None:
        self._layout, self._collectives = layout, collectives
        self._rank, self._world = collectives.rank, collectives.world

    def compare(self) -> Comparison | None:
        """Bring all ranks' checksums together. None if each rank holds another part of the model."""
        mine = checksums(self._layout)
        return Comparison(self._layout, self._collectives.gather(mine)) if len(mine) else None

    def spread(self, change: Callable[..., None], values: Tensor, spans: list[tuple[int, int]]) -> None:
        """Call `change` on every rank with those of `values` that it holds.

        Args:
            change: as `Layout.load` and `Layout.add`.
            values: the whole flat vector in shared memory.
            spans: elements [start, stop) to move.
        """
        if self._layout.sharded:
            for start, stop in spans:
                change(start, values[start:stop], rest=False)
        replicated = [run for span in spans for run in self._layout.replicated(*span)]
        for step in itertools.zip_longest(*(self._runs(rank, replicated) for rank in range(self._world))):
            runs = [run or (0, 0) for run in step]
            for (start, stop), part in zip(runs, self._gather(values, runs), strict=True):
                if start < stop:
                    change(start, part[: stop - start], shards=False)

    def _runs(self, rank: int, replicated: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """The share that `rank` brings of replicated tensors, in pieces."""
        most = max(1, PIECE // self._world)
        for run in replicated:
            for start, stop in self._layout.own(*run, rank, self._world):
                for first in range(start, stop, most):
                    yield first, min(first + most, stop)

    def _gather(self, values: Tensor, runs: list[tuple[int, int]]) -> Tensor:
        """`values` at `runs`, one run per rank and row, padded at the end. Each rank brings its own to its device."""
        width = max(stop - start for start, stop in runs)
        start, stop = runs[self._rank]
        mine = torch.zeros(width, dtype=torch.float32, device=self._layout.device)
        if start < stop:
            self._layout.streams.send(values[start:stop], mine[: stop - start])
        return self._collectives.gather(mine)

    def share_buffers(self) -> None:
        """Buffers := the first rank's. Each rank has its own running averages between two corrections."""
        buffers = self._layout.buffers()
        if not buffers:
            return
        device = self._layout.device
        # As bytes: every dtype can travel so, and arrives bit for bit.
        everything = torch.cat([each.reshape(-1).view(torch.uint8).to(device) for each in buffers])
        self._collectives.broadcast_values(everything)
        if self._rank:
            parts = torch.split(everything, [each.numel() * each.element_size() for each in buffers])
            for each, part in zip(buffers, parts, strict=True):
                each.copy_(part.clone().view(each.dtype).view(each.shape))

    def load_state(self, state: Buffer) -> None:
        """Every rank loads the carried state that the daemon gave the leader; other ranks pass b""."""
        self._layout.carried.load(self._collectives.broadcast_bytes(state))


COMPARED: Final = 3
"""first snapshots at which replicas are compared; replicas that are not kept equal have parted by the first"""

Spans: TypeAlias = list[tuple[int, int]]


class GroupActions:
    """One rank's part. The leader has a session, every other rank a `Follower`.

    Args:
        layout: the model's exchanged tensors.
        home: the peer's home.
        session: the leader's; None on the other ranks.
        optimizers: those of this rank.
        collectives: the group's channels.

    Raises:
        ConfigError: GD-308, the ranks are on several hosts.
        MismatchError: GD-301, they hold different models.
    """

    def __init__(
        self, layout: Layout, home: Path, session: Session | None, optimizers: Optimizers, collectives: Collectives
    ) -> None:
        self._layout, self._session, self._optimizers, self._collectives = layout, session, optimizers, collectives
        self._moves = GroupMoves(layout, collectives)
        self.rank, self.world = collectives.rank, collectives.world
        self._leader = agree_on_model(layout.schema, collectives.numbers)
        self._follower = None if session is not None else Follower(home, layout, self.rank, self.world)
        self._moments: AdamMoments | None = None
        """those that all ranks have"""
        self._torn: list[int] = []
        """the first parameter of each block whose parts several ranks write"""
        self._encoding: tuple[MomentsEncoder, Announcement, Order | None] | None = None
        """the moments that are being encoded, what announced them, and the leader's order"""
        self._compared = 0
        """snapshots at which replicas were compared"""
        self._comparison: Comparison | None = None
        """the leader's last"""

    @property
    def apart(self) -> str:
        """How the ranks' parameters differ, as far as the leader knows; "" if they do not."""
        return "" if self._comparison is None else self._comparison.difference or ""

    def compare(self) -> None:
        """Before the first model.

        Raises:
            MismatchError: GD-320, the ranks' parameters differ.
        """
        comparison = self._moves.compare()
        self._layout.finish()
        if comparison is not None and (seen := comparison.difference):
            raise replicas_differ(seen)

    def agree_on_moments(self) -> bool:
        """Find out whether all ranks' optimizers have moments. Returns True if all would start from some."""
        moments = self._optimizers.moments
        able = whole_numbers([moments is not None, moments is not None and moments.empty])
        self._collectives.minimum(able)
        held, wanted = (bool(each) for each in able)
        self._moments = moments if held else None
        if held:
            mine = spans_of(self._layout, self.rank, self.world)
            self._torn = self._collectives.union(torn(self._layout.schema, mine))
        if self._session is not None:
            self._session.expect_moments(held=held, wanted=wanted)
        return wanted

    def write(self, order: Order | None) -> None:
        """Every rank connects to the daemon, and writes its part of the model."""
        self._encoding = None
        reached = whole_numbers([1])
        if self._follower is not None:
            reached.fill_(int(self._follower.join(self._leader)))
        self._collectives.minimum(reached)
        if not int(reached):
            if self._session is not None:
                self._session.fail("a rank of this group cannot reach the daemon")
        elif self._session is not None and isinstance(order, Write):
            state = self._layout.carried.copy(now=True)
            self._session.done(order, self._layout.read(order.into, self.rank, self.world), state)
        elif self._follower is not None and self._follower.region is not None:
            fence = self._layout.read(self._follower.region.buffers[0], self.rank, self.world)
            self._follower.say(fence, links.Ready())

    def load(self, order: Order | None, read: Announcement) -> None:
        """Every rank loads the network's model."""
        if isinstance(order, Load):
            # The other ranks' buffers become the leader's below, whatever reference they have.
            self._layout.adopt(order.carried.reference)
        self._moves.load_state(order.carried.state if isinstance(order, Load) else b"")
        self.change(order, read, [(0, self._layout.schema.size)])
        if read.reset:
            self._optimizers.reset()

    def spans(self, order: Order | None, read: Announcement) -> Spans:
        """The spans of a correction, [start, stop) each, on every rank."""
        spans = torch.zeros(read.spans, 2, dtype=torch.int64, device="cpu")
        if isinstance(order, Drain) and order.spans:
            spans.copy_(whole_numbers(order.spans))
        if read.spans:
            self._collectives.broadcast(spans)
        found: Spans = spans.tolist()
        return found

    def change(self, order: Order | None, read: Announcement, spans: Spans) -> None:
        """Load or add the shared memory's values on `spans`, on every rank."""
        values = torch.from_numpy(order.values) if isinstance(order, Load | Drain) else self._shared(read)
        self._moves.spread(self._layout.load if read.kind == Kind.LOAD else self._layout.add, values, spans)
        self._moves.share_buffers()
        self._optimizers.moved()
        if self._session is not None and order is not None:
            self._session.done(order, self._layout.fence())
        elif self._follower is not None:
            self._follower.applied(self._layout.fence(), read.session, read.slot)

    def take_snapshot(self, session: int, number: int) -> None:
        """Every rank writes its part of a snapshot."""
        comparison = self._moves.compare() if self._compared < COMPARED else None
        self._compared += 1
        if self._session is not None:
            order, self._comparison = self._session.snapshot(), comparison
            if order is not None:
                fence = self._layout.read(order.into, self.rank, self.world)
                state = self._layout.carried.copy()
                self._session.done(order, fence if comparison is None else lambda: fence() and comparison.equal, state)
        elif self._follower is not None and (free := self._follower.free) is not None:
            fence = self._layout.read(free, self.rank, self.world)
            self._follower.say(fence, links.Copied(session, number))

    def send_moments(self, order: Order | None, read: Announcement) -> None:
        """Every rank begins to write its part of the optimizer's moments. The first one writes torn blocks."""
        assert self._moments is not None
        into = None if self._follower is None else self._follower.free_bytes
        if isinstance(order, SendMoments):
            into = order.into
        values = self._moments.torn(self._torn, self.rank, self.world) if self._torn else None
        if values is not None:
            self._collectives.sum(values)
        if into is not None:
            mine = Torn(self._torn, values) if values is not None and self._session is not None else None
            self._encoding = self._moments.encoder(into, self.rank, self.world, mine), read, order

    def encode_moments(self, *, everything: bool) -> None:
        """Encode the next part of the moments, and report after the last. everything: do not leave any for later."""
        if self._encoding is None or self._moments is None:
            return
        encoder, read, order = self._encoding
        if self._session is not None and not (isinstance(order, SendMoments) and self._session.wants(order)):
            self._encoding = None
        elif encoder.step(everything=everything):
            self._encoding = None
            if self._session is not None and order is not None:
                self._session.done(order, encoder.fence, optimizer_steps=self._moments.steps)
            elif self._follower is not None:
                self._follower.say(encoder.fence, links.Moments(read.session, read.slot, 0))

    def keep(self, order: Order | None, read: Announcement) -> None:
        """The daemon made the live parameters its model."""
        if self._session is not None and order is not None:
            self._session.done(order, passed)
        elif self._follower is not None:
            self._follower.applied(passed, read.session, 0)

    def load_state(self, order: Order | None) -> None:
        """Every rank loads a newer carried state."""
        self._moves.load_state(order.state if isinstance(order, LoadState) else b"")
        if self._session is not None and order is not None:
            self._session.done(order, self._layout.fence())

    def load_moments(self) -> None:
        """Give a new optimizer, on every rank, the moments that the daemon keeps for it."""
        if (moments := self._moments) is None:
            return
        # They arrive in the memory of the model, and each rank must have read that.
        self._collectives.barrier()
        order = None if self._session is None else wait_for_moments(self._session)
        steps = whole_numbers([0 if order is None else order.steps])
        self._collectives.broadcast(steps)
        if not int(steps):
            return
        moments.load(self._follower_region().raw[0] if order is None else order.encoded)
        # The memory is written again when all ranks have read it.
        self._layout.finish()
        self._collectives.barrier()
        if self._session is not None:
            self._session.inherited()
        moments.finish(int(steps), self._collectives.maximum)

    def _follower_region(self) -> links.Region:
        assert self._follower is not None and self._follower.region is not None
        return self._follower.region

    def _shared(self, read: Announcement) -> Tensor:
        """The vector in shared memory that an announcement is about."""
        region = self._follower_region()
        return torch.from_numpy(region.buffers[read.slot % 2])

    # -- the daemon -------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Take in the daemon's messages, and send what is ready. Never waits."""
        if self._session is not None:
            self._session.poll()
        if self._follower is not None:
            self._follower.poll()

    def settle(self) -> None:
        """Training is over: moments that are not whole are not handed over."""
        if self._encoding is not None and self._session is not None:
            self._layout.finish()
            self._session.withdraw(self._encoding[2])
        self._encoding = None

    def farewell(self) -> None:
        """Tell the daemon that this rank leaves on purpose."""
        if self._follower is not None:
            self._follower.farewell()
        if self._session is not None:
            self._session.farewell()

    def leave_follower(self) -> None:
        """A rank other than the leader leaves the daemon."""
        if self._follower is not None:
            self._layout.finish()
            self._follower.poll()
            self._follower.close()
