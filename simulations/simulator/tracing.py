"""Readable traces: records of the simulator as lines that say which peer sends what, and what follows.

    0.000   p0 --> p1   Offer of exchange 1.1: modulo8, window 2
    0.020   p1 --> p0   Accept exchange 1.1: modulo8, window 2
    0.041   p0 --x p1   Ack of chunk 0, turn 3        (--x: lost; ==>: duplicated)
    0.050   p0          has mixed chunk 0

Routine is left out: probes without news, news that was sent before, snapshots, slots and timers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from gossipdp.protocol import events, jobs
from gossipdp.protocol.course.table import Reason
from gossipdp.protocol.wire import messages as said
from gossipdp.protocol.wire.messages import Member, State
from simulations.simulator.faults import FOREVER, Fault
from simulations.simulator.network import Record

__all__ = ["Reader", "about", "concerning", "names", "number", "sentence"]

ARROWS = {"sent": "-->", "twice": "==>", "lost": "--x", "missed": " -x"}
ROUTINE = (events.Pace, events.SlotSealed, events.SnapshotTaken)
INPUTS = {
    "starts": "starts",
    "stops": "is gone",
    "attach": "a training process attaches",
    "detach": "the training process is gone",
    "leave": "is told to leave",
    "resume": "goes on",
    "link down": "a link is gone",
    "heal": "all links are whole again",
    "calm": "the storm is over",
}
GOSSIP = (said.Ping, said.Pong, said.PushPull)
BELIEFS = {State.ALIVE: "alive", State.SUSPECT: "suspected", State.FAILED: "failed", State.LEFT: "gone"}


class Reader:
    """Reads the records of one run in order.

    Args:
        names: names of peers, by id.
    """

    def __init__(self, names: Mapping[bytes, str]) -> None:
        self._names = names
        self._told: set[tuple[int | None, int | None, str, bool]] = set()
        """gossip that has a line: sender, receiver, text, whether it was lost"""
        self._started: set[int | None] = set()
        """hosts that have started: their first greetings have lines even without news"""
        self._before = ""

    def line(self, record: Record, *, since: float = 0.0, last: bool = False) -> str | None:
        """The line of a record, or None for routine.

        Args:
            since: time that counts as 0.
            last: no record came after it.
        """
        text = self._text(record, last)
        if text is None:
            return None
        if isinstance(record.what, GOSSIP):
            kind, _, news = text.partition(": ")
            first = not self._started.isdisjoint((record.host, record.other))
            told = (record.host, record.other, news or kind, record.kind == "lost")
            if told in self._told or record.kind == "missed" or not (news or first):
                return None
            self._told.add(told)
        elif record.kind == "starts":
            self._started.add(record.host)
        who = "" if record.host is None else f"p{record.host}"
        other = "" if record.other is None else f"p{record.other}"
        arrow = ARROWS.get(record.kind, "")
        line = f"{record.at - since:9.3f}  {who:>4} {arrow:3} {other:<4} {text}".rstrip()
        if line == self._before:
            return None
        self._before = line
        return line

    def lines(self, records: Iterable[Record], *, since: float = 0.0) -> list[str]:
        told = list(records)
        made = (self.line(record, since=since, last=record is told[-1]) for record in told)
        return [line for line in made if line is not None]

    def _text(self, record: Record, last: bool) -> str | None:
        what = record.what
        match record.kind:
            case "sent" | "twice" | "lost":
                return self._message(what)
            case "missed":
                text = self._message(what)
                return None if text is None else f"(nobody there, or the link cut) {text}"
            case "said":
                return self._event(what)
            case "did":
                return _result(what, record.result)
            case "does":
                chunk = getattr(getattr(what, "key", what), "chunk", None)
                of = "" if chunk is None else f" of chunk {chunk}"
                return f"is about to carry out {type(what).__name__}{of}" if last else None
            case "fault":
                return f"*** {sentence(what, record.host)}"
        return INPUTS.get(record.kind)

    def name(self, peer: bytes) -> str:
        return self._names.get(peer, peer[:4].hex())

    # -- messages ---------------------------------------------------------------------------------------------

    def _message(self, message: Any) -> str | None:
        match message:
            case said.Ping() | said.Pong() | said.PushPull():
                news = self._news(message.members)
                kind = type(message).__name__
                return f"{kind}: {'; '.join(news)}" if news else kind
            case said.PingRequest(_, target):
                return f"PingRequest: please ping {self.name(target)}"
            case said.Nack():
                return "Nack: your target has not answered me"
            case said.Offer(exchange, _, _, codec, _, _, _, window) | said.Accept(exchange, codec, _, _, window):
                return f"{type(message).__name__} exchange {number(exchange)}: {codec}, window {window}"
            case said.Refuse(exchange, reason):
                return f"Refuse exchange {number(exchange)}: {reason}"
            case said.Ranges(_, chunk):
                return f"Ranges of chunk {chunk}"
            case said.Data(_, chunk, turn):
                return f"Data of chunk {chunk}, turn {turn}"
            case said.Ack(_, chunk, turn):
                return f"Ack of chunk {chunk}, turn {turn}: I have mixed it"
            case said.Ask(_, chunk, turn):
                return f"Ask for chunk {chunk}: what did you answer to turn {turn}?"
            case said.Miss(_, chunk, turn):
                return f"Miss of chunk {chunk}: your turn {turn} never came"
            case said.Void(_, chunk):
                return f"Void chunk {chunk}: I have not mixed it, and never will"
            case said.End(exchange, mine, reason):
                return f"End {'my' if mine else 'your'} exchange {number(exchange)}: {reason}"
            case said.StateRequest():
                return "StateRequest: freeze your state for me"
            case said.StateManifest():
                chunks = -(-message.parameters // message.chunk_parameters)
                return f"StateManifest: {message.parameters} parameters in {chunks} chunks, round {message.rounds}"
            case said.StateAsk(_, _, chunks, _):
                return f"StateAsk for chunk{'s' * (len(chunks) > 1)} {', '.join(map(str, chunks))}"
            case said.StateChunk(_, _, chunk, _):
                return f"StateChunk {chunk}"
            case said.StateRefuse(_, reason):
                return f"StateRefuse: {reason}"
            case said.StateProbe(_, starts):
                return f"StateProbe: {len(starts)} runs of your anchor, to judge another's state by"
            case said.StateSample(_, clock, rounds):
                return f"StateSample of round {rounds}, clock {clock}"
            case said.Lineage(line=line) if line.generation:
                held = f"Lineage: of line {self.name(line.maker)} with {line.members} members, clock {line.clock}"
                return f"{held}{', apart from you' * message.apart}"
        return type(message).__name__

    def _news(self, members: Iterable[Member]) -> list[str]:
        """News about members that are not simply alive."""
        news = []
        for member in members:
            if member.state != State.ALIVE or member.refutation:
                text = f"{member.name} {BELIEFS[member.state]}"
                if member.accusers:
                    text += f" by {', '.join(self.name(peer) for peer in member.accusers)}"
                if member.refutation:
                    text += f" (refutation {member.refutation})"
                news.append(text)
        return news

    # -- events -----------------------------------------------------------------------------------------------

    def _event(self, event: Any) -> str | None:
        match event:
            case events.MemberChanged(member, before):
                was = "" if before is None else f", {BELIEFS[before]} before"
                return f"holds {member.name} for {BELIEFS[member.state]}{was}"
            case events.Joined(through):
                return f"has found the network through {self.name(through)}"
            case events.StateReady(origin, clock):
                return f"has the model: {origin}, at step {clock} of the network"
            case events.SessionOpened(session):
                return f"opens session {session}: the training process may load x and step"
            case events.RoundDone(round_number):
                return f"has done round {round_number}"
            case events.ExchangeStarted(partner, exchange, initiator, codec):
                side = "initiator" if initiator else "responder"
                return f"begins exchange {number(exchange)} with {self.name(partner)} as {side}, {codec}"
            case events.ExchangeEnded(partner=partner, exchange=exchange, result=result):
                mixed = f"{event.chunks} of {event.of} chunks mixed"
                return f"ends exchange {number(exchange)} with {self.name(partner)}: {result}, {mixed}"
            case events.OfferRefused(partner, reason):
                return f"takes back its offer to {self.name(partner)}: {reason}"
            case events.ChunksInDoubt(partner, count):
                return f"counts in doubt, for ever: chunks {count}, partner {self.name(partner)}"
            case events.TransferProgress(source, chunks, of):
                return f"has {chunks} of {of} chunks of the state from {self.name(source)}"
            case events.StateJudged(source, witness, plausible):
                verdict = "plausible" if plausible else "not plausible"
                by = self.name(witness) if witness else "default, for there is no other peer"
                return f"takes the state from {self.name(source)} for {verdict}, by {by}"
            case events.ResyncBegan(Reason.APART, members, others):
                return f"follows {others} who were apart from this side of {members}, and fetches their model"
            case events.ResyncBegan():
                return "has fallen behind, and fetches the model anew"
            case events.ResyncEnded(_, source, complete):
                return f"has the model of {self.name(source)} now" if complete else "finds nobody left to follow"
            case events.Left():
                return "has said goodbye"
            case events.Notice(code, text):
                return f"tells its operator: {code} {text}"[:110]
        return None if isinstance(event, ROUTINE) else str(event)[:110]


def number(exchange: int) -> str:
    """incarnation.counter"""
    return f"{exchange >> 32}.{exchange & 0xFFFF_FFFF}"


def _result(job: Any, result: Any) -> str | None:
    match job, result:
        case (jobs.OfExchange(key=key), jobs.Turn(mixed=True)):
            return f"has mixed chunk {key.chunk} of exchange {number(key.exchange)}"
        case (_, jobs.Turn(refused=reason)) if reason:
            return f"refuses what came: {reason}"
        case (jobs.Restore(), jobs.Restored()):
            return "has restored its checkpoint"
    return None


def sentence(fault: Fault, host: int | None = None) -> str:
    """What a fault does, in words.

    Args:
        host: the host that it struck, if known.
    """
    who = f"p{fault.hosts[0] if host is None else host}"
    if host is None and fault.busy:
        who = "whoever sends it" if fault.on else f"a host in the middle of an exchange, else {who},"
    some = names(fault.hosts)
    lasts = "" if fault.lasts == FOREVER else f" for {_seconds(fault.lasts)}"
    back = "" if fault.lasts == FOREVER else f", back after {_seconds(fault.lasts)}"
    gone = ["its training process"] * fault.trainer + ["its disk"] * (not fault.disk)
    with_it = f" with {' and '.join(gone)}" if gone else ""
    text = {
        "crash": f"{who} crashes{with_it}{back}",
        "torn": f"{who} crashes{with_it} while it writes a checkpoint{back}",
        "die": f"the training process of {who} dies{back}",
        "leave": f"{who} leaves{back}",
        "join": f"{some} starts",
        "pause": f"{who} stops{lasts}",
        "slow": f"{who} is ten times slower{lasts}",
        "straggler": f"{some} computes and trains {fault.factor:g} times slower{lasts}",
        "storm": f"half of all messages are lost, and the others late{lasts}",
        "flapping": f"the links of {who} break and heal every 0.4 s{lasts}",
        "isolated": f"{who} is cut off from all others{lasts}",
        "one-way": f"nothing gets from {who} to the others{lasts}",
        "halves": f"{some} and the rest are cut off from each other{lasts}",
        "bridge": f"{some} and the rest reach each other over p{fault.hosts[0]} alone{lasts}",
        "ring": f"in the ring {some} everybody reaches two neighbours alone{lasts}",
        "lose": f"the next {fault.on} of {who} is lost",
        "replay": f"a stranger hears what {who} says{lasts}, and repeats it {_seconds(fault.factor)} later",
    }[fault.kind]
    return f"{text}, as {who} sends its next {fault.on}" if fault.on and fault.kind != "lose" and host is None else text


def names(hosts: Sequence[int]) -> str:
    """A list of hosts: "p0, p1 and p2". Three and more in a row become a range: "p3-p9"."""
    runs: list[list[int]] = []
    for host in sorted(hosts):
        if runs and host == runs[-1][-1] + 1:
            runs[-1].append(host)
        else:
            runs.append([host])
    parts = [f"p{run[0]}-p{run[-1]}" if len(run) > 2 else [f"p{host}" for host in run] for run in runs]
    flat = [part for one in parts for part in ([one] if isinstance(one, str) else one)]
    return flat[0] if len(flat) == 1 else f"{', '.join(flat[:-1])} and {flat[-1]}"


def _seconds(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if value < 1.0 else f"{value:g} s"


def concerning(text: str, peers: int) -> tuple[frozenset[int], str]:
    """The peers, and the exchange or an empty string, that the text of a failure names."""
    named = {int(host) for host in re.findall(r"\bp(\d+)\b", text)}
    exchange = re.search(r"\bof exchange (\d+\.\d+)\b", text)
    return frozenset(host for host in named if host < peers), exchange[1] if exchange else ""


def about(hosts: Collection[int], exchange: str) -> Callable[[Record], bool]:
    """A filter for records of these peers, and of this exchange alone. No peers or no exchange means any.

    For one peer it passes all that the peer sends and receives; for several peers, what passes between them.
    """

    def wanted(record: Record) -> bool:
        if record.kind == "fault":
            return True
        ends = {end for end in (record.host, record.other) if end is not None}
        if hosts and not (ends <= set(hosts) or (len(hosts) == 1 and ends & set(hosts))):
            return False
        if not exchange or record.kind in INPUTS:
            return True
        what = getattr(record.what, "key", record.what)
        if isinstance(what, events.MemberChanged):
            return what.member.state in (State.FAILED, State.LEFT)
        if isinstance(what, events.ChunksInDoubt):
            return True
        which = getattr(what, "exchange", None)
        return which is not None and number(which) == exchange

    return wanted
