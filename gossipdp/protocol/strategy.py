"""The seam between a peer and its way to average: what a `Peer` asks of a strategy, and what it offers one.

A strategy is one package with an implementation of `Strategy` and a settings class. `strategies` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Protocol

from gossipdp.protocol import jobs
from gossipdp.protocol.events import Closeness
from gossipdp.protocol.membership.membership import Membership
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.model import Model
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.rounds.pacing import Pacing
from gossipdp.protocol.rounds.rounds import Steps
from gossipdp.protocol.transfer.source import Shared
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Member, Message

__all__ = ["Strategy", "StrategyConfig", "Surroundings"]


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a peer offers its strategy: the machines it may read, and the callbacks it reports to."""

    membership: Membership
    progress: ProgressBoard
    outputs: Outputs
    pacing: Pacing
    """H, the outer step, and whether training makes rounds"""
    random: Random
    now: float
    """seconds, when the peer is built"""
    sign: Callable[[bytes], bytes]
    verify: Callable[[bytes, bytes, bytes], bool]
    """peer id, data, signature"""
    settings: bytes
    """digest of what peers must agree on, 16 bytes"""
    keys: tuple[str, ...]
    """the settings in the digest, in its order"""
    sync: bool
    """training waits for the exchanges of each round"""
    shuns: Callable[[bytes, float], bool]
    """whether a member is set aside for its faults"""
    apart: Callable[[], Mapping[bytes, int]]
    """members that nothing is exchanged with until one side has fetched the model of the other"""
    trains: Callable[[], bool]
    """whether a training process is attached and has made a round"""
    attached: Callable[[], bool]
    """whether a training process has a session"""
    drift: Callable[[], int]
    """steps of the network's clock that the model has missed"""
    began: Callable[[], None]
    """an exchange begins"""
    ended: Callable[[int, float, float, float], None]
    """an exchange has ended: chunks mixed, seconds, RMS distance per parameter (NaN: unknown), now"""
    applied: Callable[[], None]
    """an increment of another peer has moved the anchor"""
    refounded: Callable[[], None]
    """the state is shared with no other peer any more"""


class StrategyConfig(Protocol):
    """Settings of a strategy: data alone."""

    name: ClassVar[str]
    """as the configuration calls the strategy"""
    exact: ClassVar[bool]
    """peers that have applied the same increments hold the same bits"""


class Strategy(Protocol):
    """One peer's way to average. All methods are sans-IO: they queue messages, jobs and events in the outputs."""

    @property
    def steps(self) -> Steps | None:
        """The outer step of a round, or None for the plain one."""

    @property
    def shared(self) -> Shared | None:
        """The state that all peers share, or None if each peer has its own."""

    # -- the model --------------------------------------------------------------------------------------------

    def ready(self, model: Model, summary: Buffer | None, clock: int) -> None:
        """The model is here. summary: what is inside a received exact state; None for a state of this peer's own."""

    def adopt(self, model: Model, summary: Buffer, clock: int) -> None:
        """The model has been replaced by another peer's."""

    def chunk_received(self, now: float) -> None:
        """A chunk of the model that this peer fetches has arrived."""

    def hold(self, held: bool, now: float) -> bool:
        """While `held`, exchange nothing, because the model is being replaced. True once nothing is under way."""

    # -- rounds -----------------------------------------------------------------------------------------------

    def submitted(self, samples: int, steps: int, clock: int) -> None:
        """A good snapshot has come, with the samples and steps since the one before."""

    def round_done(self, now: float) -> None:
        """The outer step of a round is made."""

    def paced(self) -> None:
        """The pacing has changed: H, the outer step, or whether training makes rounds."""

    def stop(self, now: float) -> None:
        """Begin nothing more: this peer leaves."""

    def close(self, others: Sequence[Member], now: float) -> None:
        """Training is over. Bring this peer's state and those of `others` together. Called when they change, too."""

    @property
    def closeness(self) -> Closeness:
        """How close the states are by now."""

    @property
    def needed(self) -> float:
        """Seconds for which another member may be busy before it needs this peer to bring the states together."""

    @property
    def satisfied(self) -> bool:
        """The exchanges of this round are made, as far as another peer is there."""

    @property
    def at_rest(self) -> bool:
        """Nothing is under way, here or at a partner."""

    # -- inputs -----------------------------------------------------------------------------------------------

    def receive(self, message: Message, buffers: list[Buffer], source: bytes, size: int, now: float) -> None:
        """A message of the strategy's own kinds. size: bytes of all its frames."""

    def job_done(self, job: jobs.Job[object], result: object, now: float) -> None:
        """A job that the strategy asked for is carried out."""

    def member_changed(self, member: Member, now: float) -> None:
        """Membership has news of `member`."""

    def reputation_changed(self, now: float) -> None:
        """A member has been set aside, or its time aside is over."""

    def link_down(self, peer: bytes, now: float) -> None:
        """The transport has lost its link to `peer`."""

    def slept(self, seconds: float) -> None:
        """This peer did not run for `seconds`."""

    def advance(self, clock: int, now: float) -> None:
        """Every input ends with this call. clock: the network's, in steps."""

    def timer(self) -> float | None:
        """When `handle_timer` wants to be called next, or None."""

    def handle_timer(self, now: float) -> None:
        """The time that `timer` named has come."""

    # -- for operators ----------------------------------------------------------------------------------------

    @property
    def partner(self) -> bytes | None:
        """The peer that this one exchanges with right now."""

    @property
    def in_doubt(self) -> int:
        """Chunks of which this peer cannot know whether the partner has mixed them."""

    @property
    def strays(self) -> tuple[bytes, ...]:
        """Members whose state is to be fetched now, because this peer's is not the network's."""

    @property
    def traffic(self) -> dict[str, int]:
        """Bytes received, by kind. Empty if the strategy does not count them."""
