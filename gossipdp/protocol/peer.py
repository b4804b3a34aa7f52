"""One peer: membership, the replica of the model, and leases of data behind one set of methods.

A driver feeds one input at a time (`receive`, `handle_timer`, `job_done`, a command). It then drains
`messages_to_send`, `next_event` and `next_job`, and asks `timer` (architecture section 4). No socket, clock, thread or
vector is used here. The same inputs and the same random source give the same outputs, byte for byte. A remote peer's
fault becomes an event, never an exception. So does a fault of this code that a message brings to light.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Final

from gossipdp.errors import RemoteProtocolError
from gossipdp.protocol import jobs
from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.admission.spreading import Spreading
from gossipdp.protocol.budgets import Budgets
from gossipdp.protocol.carried_state import NOTHING, Carried
from gossipdp.protocol.config import PeerConfig
from gossipdp.protocol.data.leasing import Leasing
from gossipdp.protocol.events import Event, Joined, Left, MemberChanged, MessageDropped, MessageFailed
from gossipdp.protocol.membership.membership import Membership, MembershipMessage
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.membership.signatures import Signer
from gossipdp.protocol.outputs import Envelope, Outputs
from gossipdp.protocol.parts import Parts
from gossipdp.protocol.replica import Replica
from gossipdp.protocol.rounds.speed import Speed
from gossipdp.protocol.strikes import Strikes
from gossipdp.protocol.transfer.claims import Held, Live
from gossipdp.protocol.transfer.moments import Moments
from gossipdp.protocol.view import View
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Coverage, Decision, Decisions, Member, Message, Progress, Receipt

__all__ = ["Peer", "PeerConfig"]

NONE_KNOWN: Final[Mapping[bytes, float]] = MappingProxyType({})


class Peer:
    """One peer of a network. Its methods are commands, inputs and outputs.

    `view` is what may be read of it. `leasing` is a second set of commands: leases on the data that the network reads.

    Args:
        me: this peer's member record. Its incarnation is new with every start.
        sign: Ed25519 signature of this peer over some bytes.
        verify: checks a signature: peer id, data, signature.
        now: seconds, on the clock that all later inputs use.
        admission: who may be a member; by default every peer.
    """

    def __init__(
        self,
        config: PeerConfig,
        me: Member,
        *,
        random: Random,
        sign: Callable[[bytes], bytes],
        verify: Callable[[bytes, bytes, bytes], bool],
        now: float,
        admission: Admission | None = None,
    ) -> None:
        self.config, self.id = config, me.id
        self._admission = Admission(me.id) if admission is None else admission
        self._admitted = self._admission.changes
        """decisions that the other machines have followed"""
        self._strikes = Strikes(config.quarantine, me.id, self._admission)
        self._outputs = Outputs()
        signer, speed = Signer(sign, verify), Speed()
        self._progress = ProgressBoard(me.id, signer)
        self._membership = Membership(
            config.membership,
            me,
            random=random,
            outputs=self._outputs,
            admission=self._admission,
            strikes=self._strikes,
            progress=self._progress,
            speed=speed,
            signer=signer,
            now=now,
        )
        self._budgets = Budgets(self._outputs, now)
        self._spreading = Spreading(
            self._admission, self._membership, self._budgets, random=random, outputs=self._outputs, now=now
        )
        parts = Parts(
            config=config,
            membership=self._membership,
            progress=self._progress,
            strikes=self._strikes,
            outputs=self._outputs,
            speed=speed,
            random=random,
            sign=sign,
            verify=verify,
            now=now,
        )
        self._replica = Replica(parts)
        self.leasing = Leasing(
            self._membership, incarnation=me.incarnation, random=random, outputs=self._outputs, now=now
        )
        self.view = View(config, self._admission, self._strikes, self._membership, self._progress, self._replica)
        self._leaving_at: float | None = None
        self._left = False

    # -- commands ---------------------------------------------------------------------------------------------

    def join(
        self,
        addresses: Sequence[str],
        now: float,
        *,
        founds: bool = False,
        remembered: Sequence[Member] = (),
        known: Mapping[bytes, float] = NONE_KNOWN,
        resume: Held | None = None,
        counted: Progress | None = None,
    ) -> None:
        """Look for the network, without end.

        Args:
            addresses: of seeds.
            founds: this peer gives the network its model: the first training process's.
            remembered: members known from before.
            known: seconds for which earlier lives of this peer knew each.
            resume: progress of this host's newest checkpoint. This peer resumes from it if no member has the model, and
                no live one holds a later checkpoint: `config.resume_after` seconds from now at the latest.
            counted: this peer's own rounds, steps and samples by that checkpoint. It counts on from them.
        """
        if counted is not None:
            self._progress.merge([counted])
        self._replica.join(remembered, resume, now, founds=founds, alone=not addresses)
        self._membership.remember(remembered, known)
        self._membership.join(addresses, now)
        self._step(now)

    def finish(self, now: float, *, calls: bool, wait: float | None = None) -> None:
        """End the run of this peer once its training process is gone: see `Ending.begin`."""
        self._replica.ending.begin(now, calls=calls, wait=wait)
        self._step(now)

    def leave(self, now: float) -> None:
        """Finish the chunks in flight, say goodbye, and emit Left."""
        if self._leaving_at is None:
            self._leaving_at = now + self.config.leave_within
            self._replica.stop(now)
            self._step(now)

    def decide(self, decision: Decision, now: float) -> bool:
        """Take and spread a decision of the network's operator. Returns whether it stands now."""
        stands = self._spreading.decide(decision, now)
        self._step(now)
        return stands

    def redeem(self, decision: Decision, receipt: Receipt, time: float, now: float) -> str:
        """A host shows an invite. Returns why it may not come in; "" if it may. time: seconds since 1970."""
        why_not = self._spreading.redeem(decision, receipt, time, now)
        self._step(now)
        return why_not

    def received(self, receipt: Receipt, now: float) -> None:
        """This peer holds what a decision gives."""
        self._spreading.received(receipt, now)
        self._step(now)

    # -- the training process ---------------------------------------------------------------------------------

    def attach(
        self,
        schema: bytes,
        now: float,
        *,
        carried: Carried = NOTHING,
        moments: bool = False,
        live: Live | None = None,
    ) -> None:
        """A training process has written its model to shared memory and waits for one to start from.

        Args:
            carried: what goes with its model.
            moments: it begins with an empty optimizer, and can use the moments that this peer holds.
            live: it trained with an earlier daemon of this peer, and its parameters may be the newest of all.
        """
        self._replica.attach(schema, carried, live, now, moments=moments)
        self._step(now)

    def detach(self, now: float) -> None:
        """The training process is gone."""
        self._replica.detach()
        self._step(now)

    def submit(
        self,
        session: int,
        snapshot: int,
        applied: int,
        steps: int,
        samples: int,
        now: float,
        *,
        state: Buffer | None = None,
        losses: tuple[float, float] = (math.nan, math.nan),
    ) -> None:
        """The training process has put a snapshot into x, `steps` and `samples` after the one before.

        Args:
            session: number of the session that submits it.
            snapshot: its number, from 1.
            applied: the latest slot in it.
            state: what is not exchanged, as of this snapshot (`carried_state`); None if it is unchanged.
            losses: the script's last training and evaluation loss, for other members to see; NaN if unknown.
        """
        self._wake(now)
        if self._replica.submit(session, snapshot, applied, steps, samples, state, losses, now):
            self._step(now)

    def slot_applied(self, session: int, slot: int, now: float) -> None:
        """The training process has added a sealed slot to x."""
        self._replica.rounds.slot_applied(session, slot)
        self._step(now)

    def hold_moments(self, moments: Moments, now: float) -> None:
        """The training process has given the inner optimizer's moments, for members that fetch them."""
        self._replica.moments.hold(moments, now)
        self._step(now)

    # -- inputs -----------------------------------------------------------------------------------------------

    def receive(self, frames: Sequence[Buffer], source: bytes, now: float) -> None:
        """`frames` came from the peer whose id the transport has verified as `source`."""
        self._wake(now)
        if not self._admission.admits(source):
            return None
        try:
            message, buffers = wire.decode(frames)
        except RemoteProtocolError as error:
            return self._outputs.emit(MessageDropped(source, str(error)))
        try:
            self._handle(message, buffers, source, sum(memoryview(frame).nbytes for frame in frames), now)
        except Exception as error:
            raised = traceback.extract_tb(error.__traceback__)[-1]
            fault = f"{type(error).__name__} in {raised.name}, line {raised.lineno}: {error!s:.200}"
            self._outputs.emit(MessageFailed(source, type(message).__name__, fault))
            self._replica.part(source, now)
        return self._step(now)

    def _handle(self, message: Message, buffers: list[Buffer], source: bytes, size: int, now: float) -> None:
        if isinstance(message, MembershipMessage):
            return self._membership.receive(message, source, now)
        self._membership.contact(source, now)
        if not self._budgets.takes(message, source, now):
            return None
        if isinstance(message, Decisions):
            return self._spreading.receive(message, buffers, source, now)
        if isinstance(message, Coverage):
            return self.leasing.receive(message, buffers, source, now)
        return self._replica.receive(message, buffers, source, size, now)

    def link_down(self, peer: bytes, reason: str, now: float) -> None:
        """The transport has lost its link to `peer`."""
        self._membership.link_down(peer, reason, now)
        self._step(now)

    def advertise(self, addresses: Sequence[str], now: float) -> None:
        """Other peers can dial this one at `addresses`, 4 at most. Without any they cannot dial it."""
        self._membership.advertise(addresses, now)
        self._step(now)

    def carried(self, relay: bytes, taken: bool, now: float) -> None:
        """A member of the last `RelaysChosen` agrees to carry to this peer, or says no."""
        self._membership.carried(relay, taken, now)
        self._step(now)

    def job_done(self, job: jobs.Job[object], result: object, now: float) -> None:
        """The driver has carried out a job. Results come in the order of the jobs."""
        self._wake(now)
        self._replica.job_done(job, result, now)
        self._step(now)

    def timer(self) -> float | None:
        """When `handle_timer` wants to be called next, or None."""
        times: list[float | None] = [self._membership.timer(), self._replica.timer()]
        if not self._left:
            times += [self._leaving_at, self.leasing.timer(), self._spreading.timer()]
        return min([time for time in times if time is not None], default=None)

    def handle_timer(self, now: float) -> None:
        """The time that `timer` named has come."""
        self._wake(now)
        self._membership.handle_timer(now)
        self._replica.handle_timer(now)
        if not self._left:
            self.leasing.handle_timer(now)
            self._spreading.handle_timer(now)
        self._step(now)

    # -- outputs ----------------------------------------------------------------------------------------------

    def messages_to_send(self) -> Iterator[Envelope]:
        """Messages to send now, in order, each with the addresses to dial if no link is up."""
        while self._outputs.messages:
            envelope = self._outputs.messages.popleft()
            if envelope.to:
                address = envelope.address or self._membership.address_of(envelope.to)
                envelope = envelope._replace(address=address, others=self._membership.others_of(envelope.to))
            yield envelope

    def next_job(self) -> jobs.Job[object] | None:
        """The next job to carry out, or None."""
        return self._outputs.jobs.popleft() if self._outputs.jobs else None

    def next_event(self) -> Event | None:
        """The next event for the driver, or None."""
        return self._outputs.events.popleft() if self._outputs.events else None

    # -- inside -----------------------------------------------------------------------------------------------

    def _wake(self, now: float) -> None:
        """Notice before an input that this peer did not run for long, for example because its host was suspended.

        Such time counts neither against other members nor as this peer's own pace.
        """
        due = self.timer()
        late = 0.0 if due is None else now - due
        if late > self.config.membership.probe_interval:
            self._membership.slept(late)
            self._replica.slept(late, now)

    def _step(self, now: float) -> None:
        """Follow up on an input. Called after every one."""
        struck = self._strikes.judge(self._outputs.unjudged, self._membership.members, now)
        self._outputs.unjudged.clear()
        for event in struck:
            self._outputs.emit(event)
        decided = self._admitted != self._admission.changes
        if decided:
            self._admitted = self._admission.changes
            self._membership.put_out(now)
        if decided or any(event.pause for event in struck):
            self._replica.averaging.step(now)
        while self._membership.events:
            news = self._membership.events.popleft()
            self._outputs.emit(news)
            if isinstance(news, Joined):
                self._spreading.joined(now)
            if isinstance(news, MemberChanged):
                self._replica.member_changed(news.member, now)
                self.leasing.member_changed(now)
        self._replica.step(now)
        leaving = self._leaving_at is not None and not self._left
        if leaving and (self._replica.averaging.at_rest or now >= (self._leaving_at or now)):
            self._left = True
            self._membership.leave(now)
            self._outputs.emit(Left())
