"""The answers to `gossipdp status` and `gossipdp members`, kept from the events of a peer.

Only plain numbers and strings come out, ready for JSON. Ids are hexadecimal. Nothing here may send, wait or touch a
vector.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gossipdp.codecs import CODECS
from gossipdp.protocol import events
from gossipdp.protocol.admission.statements import SECRET
from gossipdp.protocol.view import View
from gossipdp.protocol.wire.messages import Lane, State, short
from gossipdp.runtime.network.transport import Transport
from gossipdp.runtime.observability.health import Signs, judge
from gossipdp.runtime.observability.lags import Lags
from gossipdp.runtime.observability.member_rows import Met, finite, rows_of, versions_of
from gossipdp.runtime.observability.sample_rates import SampleRates
from gossipdp.runtime.observability.status_lines import Totals
from gossipdp.runtime.observability.unanswered import Shown, Unanswered, without_passed
from gossipdp.runtime.observability.vital_signs import VitalSigns

__all__ = ["Status", "left_behind", "secret_state"]

MAX_INVITED: Final = 6
"""most addresses in an invite"""
OF_ONE_CODE: Final = 6
"""notices of one code that are shown, at most: many of one kind would push out the others"""
RECENT: Final = 24
"""exchanges that are listed, at most"""


@dataclass
class Status:
    """Feed it every event, and ask it at any time.

    Args:
        network: the network's name.
        metrics: URL of the metrics, or "".
        page: URL of the status page, or "".
        home: the peer's home.
        log: the daemon's log file.
        address_why: where the advertised address comes from.
        trains: a training command is started along with this peer.
    """

    view: View
    transport: Transport
    network: str
    metrics: str = ""
    page: str = ""
    home: str = ""
    log: str = ""
    address_why: str = ""
    dialled: bool = False
    """members have dialled the advertised addresses"""
    trains: bool = False
    exchanges: Counter[str] = field(default_factory=Counter)
    resyncs: Counter[str] = field(default_factory=Counter)
    """number of re-syncs by reason: apart, lag and others"""
    blocks: int = 0
    escalated: int = 0
    exchanged_bytes: int = 0
    """bytes received in exchanges, also in those that mixed nothing"""
    exchanged_parameters: float = 0.0
    formula_bytes: float = 0.0
    """bytes of these exchanges by the codec's formula, plus escalations"""
    distance: float = math.nan
    loss: float = math.nan
    eval_loss: float = math.nan
    stall_seconds: float = 0.0
    training: bool = False
    attaches: int = 0
    """training processes that have attached since the daemon started"""
    trainer: int = 0
    """pid of the attached training process, 0 without one"""
    reasons: int = 0
    """errors that training processes have told since the daemon started, and that end their training"""
    reason: dict[str, Any] = field(default_factory=dict)
    """the last of them, until a process attaches; empty without one"""
    in_doubt: int = 0
    last_partner: bytes = b""
    last_exchange: dict[str, Any] = field(default_factory=dict)
    recent: deque[tuple[float, dict[str, Any]]] = field(default_factory=lambda: deque(maxlen=RECENT))
    """the last exchanges, also those that mixed nothing, and when each ended"""
    checkpoint: str = ""
    leaving: bool = False
    transfer: str = ""
    """text on how much of the fetched model has arrived"""
    notices: deque[Shown] = field(default_factory=lambda: deque(maxlen=16))
    """the latest notices, and of one code at most `OF_ONE_CODE`"""
    advice: dict[str, str] = field(default_factory=dict)
    """code -> what to do, for notices"""
    _met: dict[bytes, Met] = field(default_factory=dict)
    rates: SampleRates = field(default_factory=SampleRates)
    lags: Lags = field(default_factory=Lags)
    unanswered: Unanswered = field(default_factory=Unanswered)
    """addresses that do not answer"""
    _started: float = field(default_factory=time.monotonic)
    _shares: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._signs = VitalSigns(self.view, self.unanswered, self._started, trains=self.trains)

    def observe(self, event: events.Event) -> None:
        self._signs.observe(event, time.monotonic())
        match event:
            case events.SessionOpened():
                self.training = True
            case events.Left():
                self.leaving = True
            case events.ExchangeEnded():
                self._exchange(event)
            case events.ChunksInDoubt(_, count):
                self.in_doubt += count
            case events.TransferProgress(source, chunks, of):
                self.transfer = f"{chunks} of {of} chunks from {short(source)}"
            case events.StateReady() | events.ResyncEnded():
                self.transfer = ""
            case events.ResyncBegan(reason):
                self.resyncs[reason] += 1

    # -- what no event tells ----------------------------------------------------------------------------------

    def choose(self, why: str, *, dialled: bool = False) -> None:
        """The advertised addresses have changed, for this reason. dialled: members have dialled them."""
        self.address_why, self.dialled = why, dialled

    def attached(self, pid: int) -> None:
        """The training process `pid` has attached."""
        self.attaches += 1
        self.trainer, self.reason = pid, {}
        self._signs.attached()

    def told(self, code: str, text: str, exit_code: int, *, alone: bool) -> None:
        """A training process tells an error. It ends training with `exit_code`, unless that is 0."""
        if exit_code:
            self.reasons += 1
            self.reason = {"code": code, "text": text, "exit": exit_code, "alone": alone}

    def turned_away(self, pid: int, attached: int) -> None:
        """A second training process was refused, because `attached` is attached."""
        self._signs.turned_away(pid, attached, time.monotonic())

    def detached(self, *, left: bool) -> None:
        """The training process is gone. left: it has detached, and has not died."""
        self.training, self.trainer = False, 0
        self._signs.detached(time.monotonic(), left=left)

    def command_started(self, *, again: bool) -> None:
        """The supervisor starts the training command. again: it has failed."""
        self._signs.command_started(time.monotonic(), again=again)

    def reported(self, loss: float, eval_loss: float, stall_seconds: float) -> None:
        """The training process reports its losses (NaN if unknown), and the seconds it spent in gossipdp so far."""
        if math.isfinite(loss):
            self.loss = loss
        if math.isfinite(eval_loss):
            self.eval_loss = eval_loss
        self.stall_seconds = stall_seconds
        self._signs.reported(stall_seconds, time.monotonic())

    def checkpoint_saved(self, path: str) -> None:
        """`path` is the newest checkpoint."""
        self.checkpoint = path
        self._signs.checkpoint_ended()

    def checkpoint_failed(self, why: str) -> None:
        """The last checkpoint is not written, for this reason."""
        self._signs.checkpoint_ended(why)

    def note(
        self, notice: events.Notice, do: str = "", *, address: str = "", instead_of: events.Notice | None = None
    ) -> None:
        """Show a notice, in place of an earlier one if given, and what to do about it.

        Args:
            address: where the dial failed that the notice tells of.
        """
        self.forget(instead_of)
        alike = [each for each in self.notices if each.notice.code == notice.code]
        for oldest in alike[: max(0, len(alike) + 1 - OF_ONE_CODE)]:
            self.notices.remove(oldest)
        self.notices.append(Shown(notice, time.monotonic(), address))
        if do:
            self.advice[notice.code] = do

    def forget(self, notice: events.Notice | None) -> None:
        """Show this notice no longer."""
        for shown in [each for each in self.notices if each.notice == notice]:
            self.notices.remove(shown)

    # -- events -----------------------------------------------------------------------------------------------

    def _exchange(self, event: events.ExchangeEnded) -> None:
        self.exchanges[event.result] += 1
        partner = self._of(event.partner)
        # These bytes came over the link, whether the exchange mixed anything or not.
        self.exchanged_bytes += event.received
        self.recent.append((time.monotonic(), _told(event)))
        if event.chunks == 0:
            return
        partner.exchanges += 1
        partner.last = time.monotonic()
        self.last_partner = event.partner
        self.last_exchange = {
            "exchange": event.exchange,
            "partner": event.partner.hex(),
            "codec": event.codec,
            "chunks": event.chunks,
            "of": event.of,
            "seconds": event.duration,
            "received_bytes": event.received,
            "escalated_blocks": event.escalated,
            "blocks": event.blocks,
        }
        self.distance = event.distance
        self.blocks += event.blocks
        self.escalated += event.escalated
        model = self.view.model
        if model is not None:
            parameters = model.schema.size * event.chunks / event.of
            self.exchanged_parameters += parameters
            self.formula_bytes += CODECS[event.codec].bytes_per_parameter * parameters + event.escalation_bytes
        if event.blocks and len(self._shares) < 100_000:
            self._shares.append(event.escalated / event.blocks)

    def _of(self, peer: bytes) -> Met:
        if len(self._met) > 4096:
            self._met.clear()
        return self._met.setdefault(peer, Met())

    @property
    def steps(self) -> int:
        return self.view.steps

    @property
    def samples(self) -> int:
        return self.view.samples

    @property
    def consensus_distance(self) -> float:
        """RMS distance of a replica to the mean, per parameter: E||a_i - a_j||^2 = 2N/(N-1) CD^2 over pairs."""
        members = 1 + len(self.view.alive)
        return self.distance * math.sqrt((members - 1) / (2 * members)) if members > 1 else 0.0

    def counts(self) -> dict[str, int]:
        """Members by state, this peer included."""
        counts = Counter(member.state.name.lower() for member in self.view.members.values())
        return {state.name.lower(): counts[state.name.lower()] for state in State}

    def seeds(self) -> list[str]:
        """Addresses for an invite: all of this peer, if it can be dialled, and the first ones of some members."""
        view = self.view
        live = [member for member in view.members.values() if member.state == State.ALIVE and member.id != view.id]
        others = [member.address for member in sorted(live, key=lambda member: member.id) if member.dialable]
        own = view.me.addresses if view.me.dialable else ()
        return [*own, *others][:MAX_INVITED]

    def signs(self, *, saving: bool, finishing: str = "") -> Signs:
        """What the verdict depends on. Arguments as of `describe`."""
        signs = self._signs.collect(
            time.monotonic(),
            training=self.training,
            partner=self.last_partner,
            transfer=self.transfer,
            saving=saving,
            finishing=finishing,
        )
        return replace(signs, banned=signs.banned or left_behind(self.view, self.transport, time.time()))

    def totals(self) -> Totals:
        counters = self.transport.counters
        traffic = sum(counters.received_bytes.values()), sum(counters.sent_bytes.values())
        return Totals(self.round, self.view.clock, self.loss, *traffic)

    @property
    def round(self) -> int:
        """Rounds that this peer has made, in all its lives, as the others know it too."""
        return self.view.own_progress.rounds

    def samples_per_second(self) -> tuple[float | None, float | None]:
        """Of this peer, and of all live members of which it is known; None if it is unknown."""
        now, me = time.monotonic(), self.view.id
        own = self.rates.of(me, now)
        known = [self.rates.of(member.id, now) for member in self.view.alive]
        rates = [rate for rate in (own, *known) if rate is not None]
        return own, sum(rates) if rates else None

    def describe(self, *, saving: bool = False, finishing: str = "") -> dict[str, Any]:
        """The answer to `status`.

        Args:
            saving: this peer leaves, and its last checkpoint is not written yet.
            finishing: what the end of its run waits for.
        """
        view, counters = self.view, self.transport.counters
        own_rate, network_rate = self.samples_per_second()
        signs = self.signs(saving=saving, finishing=finishing)
        shares, shown = sorted(self._shares), without_passed(self.notices, self._signs.reached())
        here = "relay" if view.me.only_carries else "ready" if view.ready else "joining"
        state = "finishing" if finishing else here
        state = "leaving" if self.leaving else state
        return {
            "verdict": judge(signs)._asdict(),
            "id": view.id.hex(),
            "name": view.me.name,
            "network": self.network,
            "run": self.transport.run.hex(),
            "incarnation": view.me.incarnation,
            "address": view.me.address if view.me.dialable else "",
            "addresses": list(view.me.addresses) if view.me.dialable else [],
            "relays": [view.members[relay].name for relay in view.me.relays if relay in view.members],
            "address_why": self.address_why,
            "dialled": self.dialled,
            "metrics": self.metrics,
            "page": self.page,
            "home": self.home,
            "log": self.log,
            "state": state,
            "transfer": self.transfer,
            "resyncing": view.resyncing or "",
            "resyncs": dict(self.resyncs),
            "apart": len(view.apart),
            "set_aside": [other.hex() for other in view.set_aside(time.monotonic())],
            "training": "attached" if self.training else "none",
            "attaches": self.attaches,
            "trainer": self.trainer,
            "reasons": self.reasons,
            "reason": self.reason,
            "parameters": 0 if view.model is None else view.model.schema.size,
            "round": self.round,
            "model_rounds": view.model_rounds,
            "clock": view.clock,
            "steps": view.steps,
            "samples": view.samples,
            "samples_per_second": finite(own_rate),
            "network_samples_per_second": finite(network_rate),
            "every": view.every,
            "warming_up": view.warming_up,
            "members": self.counts(),
            "voices": {"all": not view.some_proven, "proven": len(view.proven)},
            "secret": secret_state(view, self.transport),
            "versions": versions_of([view.me, *view.alive]),
            "links": sorted(link.peer.hex() for link in self.transport.links()),
            "partner": "" if view.partner is None else view.partner.hex(),
            "last_partner": self.last_partner.hex(),
            "exchanges": dict(self.exchanges),
            "exchanged_bytes": self.exchanged_bytes,
            "exchanged_parameters": self.exchanged_parameters,
            "formula_bytes": self.formula_bytes,
            "last_exchange": self.last_exchange,
            "recent_exchanges": [{**told, "ago": time.monotonic() - ended} for ended, told in reversed(self.recent)],
            "blocks": self.blocks,
            "escalated_blocks": self.escalated,
            "escalated_median": shares[len(shares) // 2] if shares else None,
            "chunks_in_doubt": self.in_doubt,
            "consensus_distance": finite(self.consensus_distance),
            "consensus_ratio": finite(view.consensus_ratio),
            "loss": finite(self.loss),
            "eval_loss": finite(self.eval_loss),
            "stall_seconds": self.stall_seconds,
            "stall": finite(signs.stall),
            "sent_bytes": sum(counters.sent_bytes.values()),
            "received_bytes": sum(counters.received_bytes.values()),
            "received_data_bytes": _lane(counters.received_bytes, Lane.DATA),
            "checkpoint": self.checkpoint,
            "saving": saving,
            "uptime": time.monotonic() - self._started,
            "notices": [str(each.notice) for each in shown],
            "notices_ago": {str(each.notice): time.monotonic() - each.at for each in shown},
            "do": {code: self.advice[code] for code in {each.notice.code for each in shown} & self.advice.keys()},
        }

    def members(self) -> list[dict[str, Any]]:
        """The answer to `members`: this peer first, then by name."""
        training, counters = self.training, self.transport.counters
        ways = {link.peer: link.via for link in self.transport.links()}
        return rows_of(self.view, counters, ways, self._met, self.rates, self.lags, time.monotonic(), training=training)


def _lane(counter: Counter[tuple[bytes, Lane]], lane: Lane) -> int:
    return sum(size for (_, where), size in counter.items() if where is lane)


def _told(event: events.ExchangeEnded) -> dict[str, Any]:
    """One line of the list of recent exchanges."""
    return {
        "partner": event.partner.hex(),
        "result": event.result,
        "chunks": event.chunks,
        "of": event.of,
        "seconds": event.duration,
        "sent_bytes": event.sent,
        "received_bytes": event.received,
    }


# -- the network's secret ------------------------------------------------------------------------------------------


def secret_state(view: View, transport: Transport) -> dict[str, Any]:
    """What this peer knows of the network's secret.

    Returns:
        generation: number of the secret that this peer holds; 0 for the first.
        newest: number of the newest that it knows of.
        until: seconds since 1970; so long the secret before is taken from everybody.
        lacks: names of live members that are not known to have the newest.
    """
    renewal = view.decision(SECRET)
    generation = transport.secret.generation
    if renewal is None or renewal.secret is None:
        return {"generation": generation, "newest": generation, "until": 0, "lacks": []}
    named, holders = frozenset(renewal.allowed), view.holders(SECRET)
    proven = {link.peer for link in transport.links() if link.generation == renewal.number}
    old = {link.peer for link in transport.links()} - proven
    live = view.alive
    lacking = [one for one in live if one.id not in holders | proven and (one.id in named or one.id in old)]
    lacks = [member.name for member in lacking if not view.why_not(member.id)]
    if generation != renewal.number:
        lacks.append(view.me.name)
    newest = max(generation, renewal.number)
    return {"generation": generation, "newest": newest, "until": renewal.secret.until, "lacks": sorted(lacks)}


def left_behind(view: View, transport: Transport, wall: float) -> str:
    """Why members keep this peer out for want of the newest secret; "" if they do not. wall: seconds since 1970."""
    renewal = view.decision(SECRET)
    if renewal is None or renewal.secret is None or renewal.number <= transport.secret.generation:
        return ""
    if wall < renewal.secret.until:
        return ""
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(renewal.time))
    return f"the network has a new secret since {since}, which this host lacks: join again with a new invite"
