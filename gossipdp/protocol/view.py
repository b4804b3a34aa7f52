"""What a driver, the status and the metrics read of a peer.

All of it is values: numbers, ids and frozen records. Nothing here changes the peer, and nothing here is one of its
machines. Ids are the 32 bytes of a peer's public key.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.config import PeerConfig
from gossipdp.protocol.course.ending import Counts, FinishProgress
from gossipdp.protocol.course.table import Reason
from gossipdp.protocol.events import Closeness
from gossipdp.protocol.membership.membership import Membership
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.model import Model
from gossipdp.protocol.replica import Replica
from gossipdp.protocol.strikes import Strikes
from gossipdp.protocol.transfer.claims import Held
from gossipdp.protocol.transfer.moments import Moments
from gossipdp.protocol.wire.messages import Decision, Member, Progress

__all__ = ["View"]


class View:
    """One peer as it is now. Each property is read anew; a record that was read does not change."""

    def __init__(
        self,
        config: PeerConfig,
        admission: Admission,
        strikes: Strikes,
        membership: Membership,
        progress: ProgressBoard,
        replica: Replica,
    ) -> None:
        self.config = config
        self._admission, self._strikes, self._membership = admission, strikes, membership
        self._progress, self._replica = progress, replica

    # -- this peer --------------------------------------------------------------------------------------------

    @property
    def id(self) -> bytes:
        return self._membership.me.id

    @property
    def me(self) -> Member:
        """This peer's own record."""
        return self._membership.me

    @property
    def leaving(self) -> bool:
        """Whether `Peer.leave` was called."""
        return self._replica.averaging.stopped

    # -- the members ------------------------------------------------------------------------------------------

    @property
    def members(self) -> Mapping[bytes, Member]:
        """Every known record by id, this peer's own included."""
        return MappingProxyType(self._membership.members)

    @property
    def alive(self) -> tuple[Member, ...]:
        """The other members that are alive or suspected, sorted by id, without relays that have no model."""
        return tuple(self._membership.alive())

    @property
    def training(self) -> tuple[bytes, ...]:
        """Live members whose last report to this peer was that they train."""
        return tuple(self._membership.training())

    @property
    def proven(self) -> tuple[bytes, ...]:
        """Live members that are proven."""
        return tuple(self._membership.proven())

    @property
    def some_proven(self) -> bool:
        """Whether any member was proven. Until then all have a voice."""
        return self._membership.some_proven

    @property
    def restart_contacts(self) -> tuple[Member, ...]:
        """Members to dial after a restart. Only their addresses count."""
        return tuple(self._membership.restart_contacts())

    @property
    def known(self) -> Mapping[bytes, float]:
        """Seconds for which this peer has known each member; infinite for a proven one."""
        return self._membership.known()

    def known_for(self, member: bytes) -> float:
        """Seconds for which this peer has known `member`, earlier lives of this peer included."""
        return self._membership.known_for(member)

    @property
    def relays(self) -> tuple[bytes, ...]:
        """Members that carry to this peer what others send it, or were asked to."""
        return tuple(self._membership.relays)

    @property
    def carriers(self) -> Mapping[bytes, tuple[str, ...]]:
        """Live members that offer to carry -> where each can be dialled."""
        return self._membership.carriers()

    def rtt(self, member: bytes) -> float | None:
        """Smoothed round-trip time to `member` in seconds; None while unknown."""
        return self._membership.rtt(member)

    def heard(self, member: bytes) -> bool:
        """Whether `member` has ever sent this peer a message."""
        return self._membership.heard(member)

    def linked(self, member: bytes) -> bool:
        """Whether `member` has sent a message, and the transport has not lost it since."""
        return self._membership.linked(member)

    def has_voice(self, member: bytes) -> bool:
        """Whether the word of `member` counts where the words of several members decide."""
        return bool(self._membership.voices([member]))

    def dead_for(self, member: bytes, now: float) -> float:
        """Seconds since `member` failed or left; 0 for a live one."""
        return self._membership.dead_for(member, now)

    def left(self, address: str) -> bool:
        """Whether the member at `address` left, and no live member has that address."""
        return self._membership.left(address)

    def strikes(self, member: bytes, now: float) -> int:
        """Strikes of `member` that have not expired."""
        return self._strikes.count(member, now)

    def set_aside(self, now: float) -> tuple[bytes, ...]:
        """Members that this peer leaves alone for a while, because of their strikes."""
        return tuple(self._strikes.aside(now))

    # -- the operator's decisions -----------------------------------------------------------------------------

    @property
    def operator(self) -> bytes:
        """Public key of the network's operator; b"" without one."""
        return self._admission.operator

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """All that stand, sorted by subject."""
        return self._admission.decisions

    @property
    def fate(self) -> str:
        """Why other members keep this peer itself out; "" if they do not."""
        return self._admission.fate

    def why_not(self, member: bytes) -> str:
        """Why this peer may not deal with `member`; "" if it may."""
        return self._admission.why_not(member)

    def decision(self, subject: bytes) -> Decision | None:
        """The decision that stands about `subject`; None without one."""
        return self._admission.about(subject)

    def holders(self, subject: bytes) -> frozenset[bytes]:
        """The peers that have what the decision about `subject` gives."""
        return self._admission.holders(subject)

    # -- progress ---------------------------------------------------------------------------------------------

    @property
    def clock(self) -> int:
        """Steps of the network's clock, as far as this peer knows."""
        return self._replica.clock

    @property
    def steps(self) -> int:
        """Own steps since this daemon started."""
        return self._replica.contribution.steps

    @property
    def samples(self) -> int:
        """Own samples since this daemon started."""
        return self._replica.contribution.samples

    @property
    def own_progress(self) -> Progress:
        """This peer's own report: rounds, steps and samples of all its lives."""
        return self._progress.mine

    @property
    def reports(self) -> tuple[Progress, ...]:
        """The progress reports of all peers, the own one included once there is one."""
        return tuple(self._progress.reports())

    @property
    def network_steps(self) -> int:
        """Sum of the steps of all peers, ever."""
        return self._progress.steps()

    @property
    def network_samples(self) -> int:
        """Sum of the samples of all peers, ever."""
        return self._progress.samples()

    def report(self, member: bytes) -> Progress | None:
        """The progress report of `member`; None if there is none."""
        return self._progress.of(member)

    # -- the model --------------------------------------------------------------------------------------------

    @property
    def model(self) -> Model | None:
        """The network's model without its vectors; None until this peer has it."""
        return self._replica.model

    @property
    def ready(self) -> bool:
        """Whether the network's model is here."""
        return self._replica.ready

    @property
    def whole(self) -> bool:
        """Whether the model is here, and no other one replaces it right now."""
        return self._replica.whole

    @property
    def founds(self) -> bool:
        """Whether this peer gives the network its model, or has given it."""
        return self._replica.founds

    @property
    def resumes(self) -> Held | None:
        """The progress of this host's newest checkpoint, until the model is here."""
        return self._replica.resumes

    @property
    def resyncing(self) -> Reason | None:
        """Why this peer fetches the network's model anew right now."""
        return self._replica.resyncing

    @property
    def apart(self) -> tuple[bytes, ...]:
        """Live members that nothing is exchanged with, because they trained apart for too long."""
        return tuple(self._replica.apart)

    @property
    def state_clock(self) -> int:
        """Steps of the network's clock when the model was current."""
        return self._replica.state_clock

    @property
    def model_rounds(self) -> int:
        """Rounds in the model."""
        return self._replica.rounds.rounds

    @property
    def takes_moments(self) -> bool:
        """Whether this peer holds, gives and fetches the inner optimizer's moments."""
        return self._replica.moments.enabled

    @property
    def moments(self) -> Moments | None:
        """The newest moments that this peer holds."""
        return self._replica.moments.held

    # -- rounds and exchanges ---------------------------------------------------------------------------------

    @property
    def session(self) -> int:
        """Number of the training process's session; 0 before the first."""
        return self._replica.rounds.session

    @property
    def session_open(self) -> bool:
        """Whether the training process's session takes snapshots."""
        return self._replica.rounds.open

    @property
    def every(self) -> int:
        """H: steps of a round as it stands."""
        return self._replica.pacing.every

    @property
    def warming_up(self) -> bool:
        """Whether the network's clock is still in the warm start."""
        return self._replica.pacing.warming_up

    @property
    def usual_round(self) -> float:
        """Seconds that a usual round of this peer takes."""
        return self._replica.pacing.usual_round

    @property
    def consensus_ratio(self) -> float:
        """The consensus ratio R; NaN while it is unknown."""
        return self._replica.pacing.ratio

    def consensus_ratio_of(self, distance: float) -> float:
        """R to one partner, whose anchor has this distance, RMS per parameter; NaN while unknown."""
        return self._replica.pacing.ratio_of(distance)

    @property
    def ran_away(self) -> bool:
        """Whether rounds move the weights ever further, so that this peer steps as if alone."""
        return self._replica.pacing.runaway.active

    @property
    def partner(self) -> bytes | None:
        """The member that this peer exchanges with right now."""
        return self._replica.averaging.partner

    @property
    def closeness(self) -> Closeness:
        """How close the states of the closing peers are by now."""
        return self._replica.averaging.closeness

    # -- the end of the run -----------------------------------------------------------------------------------

    @property
    def finishing(self) -> bool:
        """Whether the run of this peer ends: it does not train any more once its training process is gone."""
        return self._replica.ending.begun

    @property
    def handed_in(self) -> bool:
        """Whether the own steps in this peer's model are in those of members that have trained on."""
        return self._replica.ending.handed_in

    @property
    def final_counts(self) -> Counts | None:
        """Counts of the members that hold this peer's final model; None before the end, or without a model."""
        return self._replica.ending.counts

    def finish_progress(self, now: float) -> FinishProgress:
        """What the end of this peer's run waits for."""
        return self._replica.ending.progress(now)
