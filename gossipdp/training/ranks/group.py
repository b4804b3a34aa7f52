"""The ranks of one host as one peer: the leader talks to the daemon, each moves its own part, all change together.

What is to be done is announced by the leader in a word, broadcast asynchronously over a Gloo group at one step boundary
and read by all ranks at the next: gradients have been reduced in between, so the word is there and no step waits for
it, and all ranks act at the same step. Each rank has the daemon's memory mapped. Of what all ranks hold (DDP, and the
buffers under FSDP2) each brings its share from there, and an all-gather gives every rank the rest; of what is sharded
each brings its own. The arithmetic is the same on all, so that replicas stay equal bit for bit; buffers, in which ranks
differ between two steps, are made the first rank's. A group whose ranks turn out to train apart, or of which one makes
no more steps, is no peer any more, and trains on alone. Nothing here may know the network.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from gossipdp import errors
from gossipdp.errors import GossipdpError
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.runtime import link as links
from gossipdp.training.healing import hopeless
from gossipdp.training.optimizer_state.adam import AdamMoments
from gossipdp.training.orders import MOMENTS, moment_of
from gossipdp.training.ranks import announcements as words
from gossipdp.training.ranks.announcements import MODES, Announcement, Word, whole_numbers
from gossipdp.training.ranks.comparison import Comparison, checksums, meet, replicas_differ
from gossipdp.training.ranks.follower import Follower
from gossipdp.training.session import Drain, Load, Order, Renew, Session, Tell, Write
from gossipdp.training.tensors.layout import Layout, passed
from gossipdp.training.tensors.streams import pinned

__all__ = ["ReplicaGroup", "together"]

log = logging.getLogger("gossipdp.training")

PIECE: Final = 4 << 20
"""parameters of one all-gather"""
PATIENCE: Final = timedelta(days=30)
"""at the beginning ranks wait for the leader, which waits for the network's model: there is no limit that fits all"""
ANSWER: Final = timedelta(hours=1)
"""ranks wait for one that does not come to its step, but evaluates or saves; of one that died they hear at once"""
WORD_EVERY: Final = 60.0
"""seconds between two words while all wait for the end of a round; less than ANSWER"""
COMPARED: Final = 3
"""snapshots before which replicas are compared: such as nobody keeps equal have parted by the first"""
MOST_SILENT: Final = 8
"""steps between two words, at most"""
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""from torch 2.13 on the one, before it the other"""


class _Silent(RuntimeError):
    """Another rank is gone, or does not come to this step."""


@contextmanager
def _heard() -> Iterator[None]:
    """Around what all ranks do together."""
    try:
        yield
    except RuntimeError as error:
        raise _Silent(str(error).partition("\n")[0]) from error


class ReplicaGroup:
    """Collective: every rank makes one, and calls the same methods in the same order.

    Args:
        session: the leader's; None on the other ranks.

    Raises:
        ConfigError: GD-308, the ranks are on several hosts.
        MismatchError: GD-301, they hold different models.
    """

    def __init__(self, layout: Layout, home: Path, session: Session | None) -> None:
        self._layout, self._session = layout, session
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self._patient: Any = dist.new_group(backend="gloo", timeout=PATIENCE)
        self._group: Any = dist.new_group(backend="gloo", timeout=ANSWER)
        # The values travel where the tensors are: NCCL for CUDA, Gloo for the CPU.
        self._values_group: Any = dist.group.WORLD if layout.device.type == "cuda" else self._group
        self._leader = meet(layout.schema, self._group)
        self._follower = None if session is not None else Follower(home, layout, self.rank, self.world)
        self._work: Any = None
        self._posted = torch.zeros(len(Word.__struct_fields__), dtype=torch.int64, device="cpu")
        self._order: Order | None = None
        self._boundary = 0
        self._next_word = 0
        self._word_at = 0
        """boundary at which the last word was posted"""
        self._snapshot: tuple[int, int, int] | None = None
        """boundary, session and number of the snapshot that is planned"""
        self._drain: tuple[Order | None, Word, list[tuple[int, int]]] | None = None
        """with mode overlap: what is added at that boundary, before it"""
        self._mode = MODES[0]
        self._moments: AdamMoments | None = None
        self._reset: Callable[[], None] = lambda: None
        self._compared = 0
        self._comparison: Comparison | None = None
        """the leader's last"""
        self._over = False
        self.announced = Announcement()

    # -- the beginning ----------------------------------------------------------------------------------------

    def begin(self, timeout: float | None, moments: AdamMoments | None, reset: Callable[[], None]) -> None:
        """Wait for the network's model, and load it on every rank.

        Args:
            moments: of the optimizer, if it has such.
            reset: makes the optimizers' state begin anew.

        Raises:
            GossipdpError: what the leader met, on every rank; GD-320, their parameters differ.
        """
        comparison = self._compare()
        self._layout.finish()
        if comparison is not None and (seen := comparison.difference):
            raise replicas_differ(seen)
        able = whole_numbers([moments is not None, moments is not None and moments.empty])
        dist.all_reduce(able, dist.ReduceOp.MIN, group=self._group)
        tells, empty = (bool(each) for each in able)
        self._moments, self._reset = moments if tells else None, reset
        if self._session is not None:
            self._session.tells, self._session.empty = tells, empty
        kind = words.NOTHING
        while kind != words.LOAD:
            self._agree_on_start(_start(self._session, timeout))
            self._announce(self._session.next_order() if self._session is not None else None)
            kind = self._read().kind
            # The leader waits for the network next, and what this rank has written must have been said by then.
            self._layout.finish()
            self._poll()
        if self._session is not None:
            self._session.empty = False
        if self._moments is not None and empty:
            self._recall(self._moments)

    def _recall(self, moments: AdamMoments) -> None:
        """Give a new optimizer, on every rank, the moments that the daemon has for it."""
        # They come where the model was, and each rank has finished with that.
        dist.barrier(group=self._group)
        steps = whole_numbers([0])
        for which in MOMENTS:
            order = None if self._session is None else self._session.recall(which)
            steps.fill_(0 if order is None else order.steps)
            dist.broadcast(steps, 0, group=self._group)
            if not int(steps):
                return moments.drop()
            values = torch.from_numpy(self._follower_region().x if order is None else order.values)
            self._spread(partial(moments.load, which), values, [(0, self._layout.schema.trainable)])
            # The memory is written again for the next, when all ranks have read it.
            self._layout.finish()
            dist.barrier(group=self._group)
        moments.finish(int(steps), lambda flags: dist.all_reduce(flags, dist.ReduceOp.MAX, group=self._group))

    def _agree_on_start(self, error: GossipdpError | None) -> None:
        known = [] if error is None else [type(error).__name__, error.code, error.cause, error.seen, error.do]
        text = msgspec.json.encode(known)
        length = whole_numbers([len(text)])
        dist.broadcast(length, 0, group=self._patient)
        payload = torch.zeros(int(length), dtype=torch.uint8, device="cpu")
        if self._session is not None:
            payload.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        dist.broadcast(payload, 0, group=self._patient)
        said = msgspec.json.decode(bytes(payload.tolist()), type=list[str])
        if error is not None:
            raise error
        if said:
            name, code, cause, seen, do = said
            raise getattr(errors, name)(code, cause, seen=seen, do=do)

    # -- at every step boundary -------------------------------------------------------------------------------

    def step_boundary(self) -> None:
        """Do what was announced for this step, and announce what comes next."""
        if self._over:
            return
        try:
            self._make_step()
        except _Silent as silent:
            log.error(
                "GD-501 a rank of this group has died or makes no more steps (%s): rank %d trains on alone",
                silent,
                self.rank,
            )
            self._leave()

    def _make_step(self) -> None:
        self._boundary += 1
        self._poll()
        if self._work is not None:
            self._read()
        if self._snapshot is not None and self._boundary >= self._snapshot[0]:
            if self._drain is not None:
                self._change(*self._drain)
                self._drain = None
            self._take_snapshot(*self._snapshot[1:])
            if self._mode == "sync":
                self._synchronise()
        if self._boundary >= self._next_word and self._work is None and not self._over:
            period = 1 if self._session is None else self._period()
            self._announce(None if self._session is None else self._session.next_order(period))

    def _synchronise(self) -> None:
        """With mode sync: wait until what the round brings has been added, on every rank."""
        if self._work is not None:
            self._read()
        session, kind = self._session, words.DRAIN
        while kind not in (words.NOTHING, words.PART):
            # The daemon goes on once every rank has said what it has done, and nobody trains meanwhile.
            self._layout.finish()
            self._poll()
            order = None if session is None or self._apart else session.await_order(WORD_EVERY)
            self._announce(order, plan=False)
            kind = self._read().kind

    def _period(self) -> int:
        assert self._session is not None
        return max(1, min(MOST_SILENT, self._session.every // 10))

    def _announce(self, order: Order | None, *, plan: bool = True) -> None:
        """Post the word that is read at the next boundary; `order` is the leader's. `plan`: a snapshot too, if due."""
        session = self._session
        kind = words.kind_of(order)
        if self._apart:
            order, kind = None, words.PART
        elif session is not None and session.hopeless:
            order, kind = None, words.END
        elif session is not None and order is None and not plan and session.patience:
            kind = words.WAIT
        self._order, self._word_at = order, self._boundary
        if session is not None:
            period = self._period()
            due = session.due_in
            # No word is read before the second step, and a schedule asks for the clock before the first.
            clock, alone = (order.clock, False) if isinstance(order, Load) else (session.clock, session.alone)
            planned = plan and due is not None and max(1, due) <= period and not isinstance(order, Load | Write)
            word = Word(
                kind=kind,
                slot=words.slot_of(order),
                spans=len(order.spans) if isinstance(order, Drain) else 0,
                session=session.number,
                snapshot=session.next_snapshot,
                snapshot_in=max(1, due or 0) if planned else 0,
                clock=clock,
                samples=session.samples,
                alone=int(alone),
                lost_steps=session.lost_steps,
                period=period,
                mode=MODES.index(session.mode),
                reset=int(isinstance(order, Load) and order.reset),
            )
            self._posted.copy_(whole_numbers(msgspec.structs.astuple(word)))
        with _heard():
            self._work = dist.broadcast(self._posted, 0, group=self._group, async_op=True)

    @property
    def _apart(self) -> str:
        """How the ranks' parameters differ, as far as the leader knows by now."""
        return "" if self._comparison is None else self._comparison.difference or ""

    def _read(self) -> Word:
        """Take in the last word, and carry out what it says."""
        with _heard():
            self._work.wait()
        self._work = None
        word = Word(*self._posted.tolist())
        self.announced = Announcement(word.clock, word.samples, bool(word.alone), word.lost_steps, word.period)
        self._next_word = self._word_at + word.period
        self._mode = MODES[word.mode]
        if word.snapshot_in:
            self._snapshot = self._word_at + word.snapshot_in, word.session, word.snapshot
        order, self._order = self._order, None
        match word.kind:
            case words.WRITE:
                self._write(order)
            case words.LOAD:
                self._snapshot = self._drain = None
                if isinstance(order, Load):
                    # The others' buffers become the leader's below, whatever reference they have.
                    self._layout.adopt(order.carried.reference)
                self._share_state(order.carried.state if isinstance(order, Load) else b"")
                self._change(order, word, [(0, self._layout.schema.size)])
                if word.reset:
                    self._reset()
            case words.KEEP:
                self._snapshot = self._drain = None
                if self._session is not None and order is not None:
                    self._session.done(order, passed)
            case words.RENEW:
                self._share_state(order.state if isinstance(order, Renew) else b"")
                if self._session is not None and order is not None:
                    self._session.done(order, self._layout.fence())
            case words.DRAIN:
                spans = torch.zeros(word.spans, 2, dtype=torch.int64, device="cpu")
                if isinstance(order, Drain) and order.spans:
                    spans.copy_(whole_numbers(order.spans))
                if word.spans:
                    with _heard():
                        dist.broadcast(spans, 0, group=self._group)
                if self._mode == "overlap" and word.snapshot_in:
                    self._drain = order, word, spans.tolist()
                else:
                    self._change(order, word, spans.tolist())
            case words.TELL:
                self._tell(order, word)
            case words.END:
                self._leave()
                raise hopeless()
            case words.PART:
                if self._apart:
                    log.error("%s\ntraining goes on alone", replicas_differ(self._apart))
                self._leave()
        return word

    def _write(self, order: Order | None) -> None:
        """Every rank connects to the daemon, and writes its part of the model."""
        reached = whole_numbers([1])
        if self._follower is not None:
            reached.fill_(int(self._follower.join(self._leader)))
        with _heard():
            dist.all_reduce(reached, dist.ReduceOp.MIN, group=self._group)
        if not int(reached):
            if self._session is not None:
                self._session.fail("a rank of this group cannot reach the daemon")
        elif self._session is not None and isinstance(order, Write):
            told = self._layout.beside.told(now=True)
            self._session.done(order, self._layout.read(order.into, self.rank, self.world), told)
        elif self._follower is not None and self._follower.region is not None:
            fence = self._layout.read(self._follower.region.x, self.rank, self.world)
            self._follower.say(fence, links.Ready())

    def _take_snapshot(self, session: int, number: int) -> None:
        self._snapshot = None
        comparison = self._compare() if self._compared < COMPARED else None
        self._compared += 1
        if self._session is not None:
            order, self._comparison = self._session.snapshot(), comparison
            if order is not None:
                fence = self._layout.read(order.into, self.rank, self.world)
                told = self._layout.beside.told()
                self._session.done(order, fence if comparison is None else lambda: fence() and comparison.equal, told)
        elif self._follower is not None and self._follower.region is not None:
            fence = self._layout.read(self._follower.region.x, self.rank, self.world)
            self._follower.say(fence, links.Copied(session, number))

    def _compare(self) -> Comparison | None:
        """Bring all ranks' checksums together; None if each holds another part of the model."""
        mine = checksums(self._layout)
        if not len(mine):
            return None
        rows = torch.empty(self.world * len(mine), dtype=mine.dtype, device=mine.device)
        with _heard():
            _all_gather(rows, mine, group=self._values_group)
        return Comparison(self._layout, rows.view(self.world, -1))

    def _change(self, order: Order | None, word: Word, spans: list[tuple[int, int]]) -> None:
        """Load or add what stands in shared memory on `spans`, on every rank."""
        values = torch.from_numpy(order.values) if isinstance(order, Load | Drain) else self._shared(word)
        self._spread(self._layout.load if word.kind == words.LOAD else self._layout.add, values, spans)
        self._same_buffers()
        if self._session is not None and order is not None:
            self._session.done(order, self._layout.fence())
        elif self._follower is not None and word.kind == words.DRAIN:
            self._follower.say(self._layout.fence(), links.Applied(word.session, word.slot))

    def _share_state(self, state: Buffer) -> None:
        """Every rank takes over what the daemon gave the leader beside the vector."""
        mine = torch.frombuffer(bytearray(state), dtype=torch.uint8) if memoryview(state).nbytes else None
        length = whole_numbers([0 if mine is None else len(mine)])
        with _heard():
            dist.broadcast(length, 0, group=self._group)
            payload = torch.zeros(int(length), dtype=torch.uint8, device="cpu") if mine is None else mine
            if len(payload):
                dist.broadcast(payload, 0, group=self._group)
        self._layout.beside.load(payload.numpy().data)

    def _spread(self, change: Callable[..., None], values: Tensor, spans: list[tuple[int, int]]) -> None:
        """Call `change` with what of `values` this rank holds, on `spans`."""
        if self._layout.sharded:
            for start, stop in spans:
                change(start, values[start:stop], rest=False)
        replicated = [run for span in spans for run in self._layout.replicated(*span)]
        for turn in itertools.zip_longest(*(self._runs(rank, replicated) for rank in range(self.world))):
            runs = [run or (0, 0) for run in turn]
            everything = self._gather(values, runs)
            for (start, stop), part in zip(runs, everything, strict=True):
                if start < stop:
                    change(start, part[: stop - start], shards=False)

    def _runs(self, rank: int, replicated: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """What `rank` brings of what all hold, in pieces."""
        most = max(1, PIECE // self.world)
        for run in replicated:
            for start, stop in self._layout.own(*run, rank, self.world):
                for first in range(start, stop, most):
                    yield first, min(first + most, stop)

    def _same_buffers(self) -> None:
        """Each rank has its own running averages: where all change together, the first rank's hold."""
        buffers = self._layout.buffers()
        if not buffers:
            return
        device = self._layout.device
        # As bytes: every dtype goes, and arrives bit for bit.
        everything = torch.cat([each.reshape(-1).view(torch.uint8).to(device) for each in buffers])
        with _heard():
            dist.broadcast(everything, 0, group=self._values_group)
        if self.rank:
            parts = torch.split(everything, [each.numel() * each.element_size() for each in buffers])
            for each, part in zip(buffers, parts, strict=True):
                each.copy_(part.clone().view(each.dtype).view(each.shape))

    def _tell(self, order: Order | None, word: Word) -> None:
        """Every rank writes its part of one of the optimizer's moments."""
        assert self._moments is not None
        which = moment_of(word.slot)
        if isinstance(order, Tell) and self._session is not None:
            self._session.done(order, self._moments.read(which, order.into, self.rank, self.world))
        elif self._follower is not None and self._follower.region is not None:
            fence = self._moments.read(which, self._follower.region.x, self.rank, self.world)
            self._follower.say(fence, links.Moments(word.session, word.slot, which, 0))

    def _follower_region(self) -> links.Region:
        assert self._follower is not None and self._follower.region is not None
        return self._follower.region

    def _shared(self, word: Word) -> Tensor:
        region = self._follower_region()
        return torch.from_numpy(region.x if word.kind == words.LOAD else region.slots[word.slot % 2])

    def _gather(self, values: Tensor, runs: list[tuple[int, int]]) -> Tensor:
        """What stands at `runs` in `values`, a row for each rank, which brings it to its device; padded at the end."""
        width = max(stop - start for start, stop in runs)
        start, stop = runs[self.rank]
        mine = torch.zeros(width, dtype=torch.float32, device=self._layout.device)
        if start < stop:
            # Memory that CUDA knows is copied without waiting for the device; the stream keeps the order.
            mine[: stop - start].copy_(values[start:stop], non_blocking=pinned(values[start:stop], mine))
        everything = torch.empty(width * self.world, dtype=torch.float32, device=self._layout.device)
        with _heard():
            _all_gather(everything, mine, group=self._values_group)
        return everything.view(self.world, width)

    # -- the end ----------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Training is over: what was announced last is not done by any rank."""
        if self._work is not None:
            with suppress(_Silent), _heard():
                self._work.wait()
            self._work = None
        if self._session is not None:
            self._session.withdraw(self._order)
        self._let_go()

    def _leave(self) -> None:
        """This group is no peer any more: its ranks do not train one replica, or not in step."""
        self._over, self._work, self._snapshot, self._drain = True, None, None, None
        self._let_go()
        if self._session is not None:
            self._layout.finish()
            self._session.close()

    def _let_go(self) -> None:
        self.announced = msgspec.structs.replace(self.announced, alone=True)
        if self._follower is not None:
            self._layout.finish()
            self._follower.poll()
            self._follower.close()

    def farewell(self) -> None:
        """This process ends, and has not died."""
        if self._follower is not None:
            self._follower.farewell()

    def _poll(self) -> None:
        if self._session is not None:
            self._session.poll()
        if self._follower is not None:
            self._follower.poll()


def _start(session: Session | None, timeout: float | None) -> GossipdpError | None:
    try:
        if session is not None:
            session.start(timeout)
    except GossipdpError as error:
        return error
    return None


def together() -> bool:
    """Is this process one of several ranks?

    Raises:
        ConfigError: GD-306, torchrun started several ranks, and they do not know each other yet.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size() > 1
    world = os.environ.get("WORLD_SIZE", "1")
    if world.isdigit() and int(world) > 1:
        raise errors.ConfigError(
            "GD-306",
            "this is one of several ranks, and torch.distributed is not initialized",
            seen=f"WORLD_SIZE={world}",
            do="call torch.distributed.init_process_group before gossipdp.attach",
        )
    return False
