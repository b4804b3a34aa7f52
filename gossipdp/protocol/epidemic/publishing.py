"""Own increments: signed, counted, stored and pushed to the neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gossipdp.protocol.epidemic.config import BroadcastConfig
from gossipdp.protocol.epidemic.epoch_set import Outcome
from gossipdp.protocol.epidemic.epochs import Epochs
from gossipdp.protocol.epidemic.signing import make, name_of, unpack_table
from gossipdp.protocol.epidemic.store import Record, Store
from gossipdp.protocol.epidemic.trees import Trees
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.epidemic_messages import MAX_SEQUENCE, Rumour

__all__ = ["Publisher"]


class Publisher:
    """The increments of this peer.

    Args:
        me, incarnation: this peer's id and life.
        sign: signs bytes with this peer's key.
    """

    def __init__(
        self,
        config: BroadcastConfig,
        epochs: Epochs,
        store: Store,
        trees: Trees,
        me: bytes,
        *,
        incarnation: int,
        sign: Callable[[bytes], bytes],
    ) -> None:
        self._epochs, self._store, self._trees = epochs, store, trees
        self._config, self._me, self._incarnation, self._sign = config, me, incarnation, sign
        self._published = (-1, 0)
        """epoch of the last own increment, and number of own increments in it"""

    def takes(self, clock: int) -> bool:
        """Whether `publish` would take an increment that is cut at `clock`."""
        epoch = clock // self._epochs.span
        sequence = self._published[1] if self._published[0] == epoch else 0
        if self._epochs.held or not self._epochs.admits(epoch) or sequence > MAX_SEQUENCE:
            return False
        return self._epochs.of(epoch).takes(self._me, self._incarnation)

    def publish(
        self,
        parts: Sequence[Buffer],
        *,
        weight: float,
        clock: int,
        samples: int,
        length: float,
        largest: int,
        now: float,
    ) -> tuple[bytes, Rumour] | None:
        """Broadcast an own increment.

        Args:
            parts: the payload.
            weight: p, its share.
            clock: the network's clock when it was cut.
            samples: samples in it.
            length: its movement of an anchor, in units of a parameter.
            largest: most bytes of a payload.

        Returns:
            Its name and header. None if it cannot be published now: this peer has no state, the epoch is not admitted,
            or it has too many increments or lives of this peer. The increment must then stay in the residual.

        Raises:
            LocalProtocolError: there are too many parts, or a part is empty or too large.
        """
        if not self.takes(clock):
            return None
        epoch = clock // self._epochs.span
        sequence = self._published[1] if self._published[0] == epoch else 0
        draft = Rumour(
            *(self._me, self._incarnation, epoch, sequence, weight, clock, samples, 1, 1, bytes(32), bytes(64)),
            run=self._config.run,
            length=length,
        )
        rumour, table = make(draft, parts, self._config.run, self._sign)
        wanted = unpack_table(table, rumour)
        name = name_of(rumour, self._config.run)
        assert wanted is not None
        record = Record(name, rumour, table, wanted, b"", parts)
        record.need(self._config.gather)
        if rumour.size > largest or not self._store.admit(record, own=True):
            return None
        if self._epochs.of(epoch).claim(name, rumour).outcome is not Outcome.NEW:
            self._store.drop(name)
            return None
        self._published = epoch, sequence + 1
        self._epochs.of(epoch).complete(name, rumour)
        self._trees.offer(record, now)
        self._trees.announce(record, ())
        return name, rumour
