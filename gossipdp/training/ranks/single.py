"""One process that trains the whole replica: what its session asks for, it does at step boundaries.

Nothing here knows the network.
"""

from __future__ import annotations

import torch

from gossipdp.training.healing import hopeless
from gossipdp.training.messages import log
from gossipdp.training.optimizer_state.encoder import MomentsEncoder
from gossipdp.training.optimizer_state.followed import Optimizers
from gossipdp.training.orders import Drain, Keep, Load, LoadState, Order, SendMoments, Snapshot, Write
from gossipdp.training.ranks.announcements import NetworkStatus
from gossipdp.training.session import Session
from gossipdp.training.tensors.layout import Layout
from gossipdp.training.tensors.streams import passed
from gossipdp.training.waiting import ModelWait, wait_for_moments, wait_for_order

__all__ = ["SingleReplica"]


class SingleReplica:
    """The counterpart of `ReplicaGroup` for one process.

    Args:
        layout: the model's exchanged tensors.
        session: the dialogue with the daemon.
        optimizers: those that train the model.
    """

    def __init__(self, layout: Layout, session: Session, optimizers: Optimizers) -> None:
        self._layout, self._session, self._optimizers = layout, session, optimizers
        self._encoding: tuple[SendMoments, MomentsEncoder] | None = None
        """the moments that are being encoded"""
        self.world = 1

    @property
    def status(self) -> NetworkStatus:
        """What is known of the network now."""
        session = self._session
        return NetworkStatus(session.clock, session.samples, session.alone, session.lost_steps)

    def begin(self, timeout: float | None) -> None:
        """Wait for the network's model, and load it.

        Args:
            timeout: seconds. None: no limit.

        Raises:
            GossipdpError: as `ModelWait`.
        """
        session, moments = self._session, self._optimizers.moments
        session.expect_moments(held=moments is not None, wanted=moments is not None and moments.empty)
        wait, order = ModelWait(session, timeout), None
        while not isinstance(order, Load):
            wait()
            order = session.next_order()
            self._carry_out(order)
        self._load_moments()

    def _load_moments(self) -> None:
        """Give a new optimizer the moments that the daemon keeps for it."""
        session, moments = self._session, self._optimizers.moments
        if moments is None or not moments.empty:
            return
        order = wait_for_moments(session)
        if order is None:
            return
        moments.load(order.encoded)
        self._layout.finish()
        session.inherited()
        if moments.finish(session.kept_steps):
            log.info("the optimizer goes on with moments of %d steps", session.kept_steps)

    @property
    def acts(self) -> bool:
        """True if the next `step_boundary` may read or change the live parameters."""
        return self._session.acts

    def poll(self) -> None:
        """Take in the daemon's messages. Call it before `step_boundary`."""
        self._session.poll()

    def step_boundary(self) -> None:
        """Carry out what the session asks for now.

        Raises:
            DataError: GD-403, training is hopeless.
        """
        session = self._session
        if session.hopeless:
            self._layout.finish()
            session.close()
            raise hopeless()
        self._encode_moments()
        while (order := session.next_order()) is not None:
            self._carry_out(order)
            if isinstance(order, Snapshot) and session.mode == "sync":
                while (drain := wait_for_order(session)) is not None:
                    self._carry_out(drain)

    def _carry_out(self, order: Order | None) -> None:
        layout, session, moments = self._layout, self._session, self._optimizers.moments
        match order:
            case Load():
                layout.adopt(order.carried.reference)
                layout.load(0, torch.from_numpy(order.values))
                layout.carried.load(order.carried.state)
                self._optimizers.moved()
                if order.reset:
                    self._optimizers.reset()
            case LoadState():
                layout.carried.load(order.state)
            case Drain():
                values = torch.from_numpy(order.values)
                for start, stop in order.spans:
                    layout.add(start, values[start:stop])
                self._optimizers.moved()
            case Write() | Snapshot():
                state = layout.carried.copy(now=isinstance(order, Write))
                return session.done(order, layout.read(order.into), state)
            case Keep():
                return session.done(order, passed)
            case SendMoments() if moments is not None:
                self._encoding = order, moments.encoder(order.into)
                return self._encode_moments()
            case None:
                return
        session.done(order, layout.fence())

    def _encode_moments(self) -> None:
        """Encode the next part of the moments, and hand them over after the last."""
        if self._encoding is None or self._optimizers.moments is None:
            return
        order, encoder = self._encoding
        if not self._session.wants(order):
            self._encoding = None
        # With mode sync a round may not go on before the daemon has the shared buffer again.
        elif encoder.step(everything=self._session.mode == "sync"):
            self._encoding = None
            self._session.done(order, encoder.fence, optimizer_steps=self._optimizers.moments.steps)

    def settle(self) -> None:
        """Training is over. No announcement is under way, and moments that are not whole are not handed over."""
        if self._encoding is not None:
            self._layout.finish()
            self._session.withdraw(self._encoding[0])
            self._encoding = None

    def farewell(self) -> None:
        """Tell the daemon that this process leaves on purpose."""
        self._session.farewell()
