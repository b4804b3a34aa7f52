"""How a peer is doing, as one verdict for people and scripts.

`STATES` is the one table of states, with the most severe first: the first one whose condition holds is the verdict.
`judge` is a pure function of `Signs`, which are plain values; `vital_signs` collects them. Nothing here may read a
clock, a peer or a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gossipdp.protocol.course.table import Reason
from gossipdp.protocol.rounds.consensus_ratio import FARTHEST
from gossipdp.runtime.network.dial_causes import Cause

__all__ = ["GONE", "STATES", "WIDE", "Kind", "Signs", "Silent", "Verdict", "agreement", "facts", "judge", "spoken"]

WIDE: Final = 2.5
"""consensus ratio above which agreement is called wide. The demo has about 1, and at most 1.7"""
FAR: Final = 0.95 * FARTHEST
"""consensus ratio from which replicas are too far apart: each exchange counts as `FARTHEST` at most"""
UNSEEN: Final = 3
"""exchanges in a row that showed no distance before a peer counts as degraded"""
MOST_STALL: Final = 0.2
"""share of the training time spent in gossipdp above which a peer is degraded, except with mode sync"""
LOOPBACK: Final = ("127.", "[::1]", "localhost:")
"""begins of addresses that other hosts cannot dial"""
GONE: Final = 3600.0
"""seconds after which a member that failed or left is not counted and not listed any more"""
SHOWN: Final = 3
"""addresses, or members, named in one verdict"""
STUCK: Final = 120.0
"""seconds without a round after which training counts as stuck, even if its model still takes part in exchanges"""
CRASHES: Final = 3
"""ends of the training command within ten minutes that make a peer degraded"""
LOST: Final = 60.0
"""seconds for which a peer may look for the network before it counts as degraded"""
LONELY: Final = 300.0
"""seconds alone after which the verdict says how to check that others can reach this peer"""
REFUSALS: Final = frozenset({"GD-201", "GD-202", "GD-203", "GD-204", "GD-302"})
"""codes of failed dials with which the other side, or this one, refuses the link"""
RESYNCS: Final = {
    Reason.APART: "this side follows the members that trained apart from it",
    Reason.LAG: "this peer has fallen behind",
}
"""why a peer that trains fetches the model again"""


class Silent(NamedTuple):
    """An address at which the last dial failed."""

    address: str
    cause: Cause
    do: str = ""
    """what to do about it; may be empty"""

    @property
    def text(self) -> str:
        if self.cause.code == "GD-101":
            return f"no peer answers at {self.address} ({self.cause.brief})"
        return f"{self.cause.code} {self.address}: {self.cause.text}"


@dataclass(frozen=True, kw_only=True)
class Signs:
    """What a verdict depends on. Times are in seconds before now."""

    joining: bool = False
    """this peer has no model yet"""
    founds: bool = False
    """this peer gives the network its model"""
    relay: bool = False
    """this peer only carries for others: it has no model, and never trains"""
    leaving: bool = False
    banned: str = ""
    """why the operator keeps this peer out, "" if it does not"""
    finishing: str = ""
    """what the end of this peer's run waits for; "" while it goes on"""
    saving: bool = False
    """the last checkpoint is being written"""
    training: bool = False
    """a training process has a session"""
    loads: bool = False
    """a training process is attached and does not have the model yet"""
    idle: float = math.inf
    """since the last training process was there; infinite if there was none"""
    starting: bool = False
    """the training command has just been started, and no process of it was attached yet"""
    live: int = 1
    """live members, this peer included"""
    unmet: float = 0.0
    """since another member was alive, or since this peer began to look for one"""
    dialled: tuple[str, ...] = ()
    """addresses at which others are told to dial this peer, as in its invite"""
    failed: tuple[tuple[str, float], ...] = ()
    """members that failed, and since when; those that left do not count"""
    train: int = 0
    """other live members that train"""
    partner: str = ""
    """the member of the last exchange"""
    exchanged: float = math.inf
    """since the last exchange that mixed something; infinite if there was none"""
    quiet: float = 0.0
    """for which exchanges were possible and none mixed anything"""
    still: float = 0.0
    """since the last round of this peer's training"""
    patience: float = math.inf
    """longest usual `quiet`: some rounds, and the time after which a silent partner is left"""
    round_seconds: float = math.nan
    """duration of a usual round"""
    fruitless: tuple[tuple[str, int], ...] = ()
    """refused offers and exchanges that mixed nothing, since the last that did: reason and number"""
    ratio: float = math.nan
    """the consensus ratio; NaN while it is unknown"""
    unseen: int = 0
    """exchanges in a row that mixed something and whose grids were too coarse to show a distance"""
    all_far: bool = False
    """several members are far from this one, none is near, and this one does not run away"""
    stall: float = math.nan
    """share of the last training time spent in gossipdp"""
    sync: bool = False
    """training waits for the exchanges of each round by choice"""
    silent: tuple[Silent, ...] = ()
    """addresses that do not answer"""
    transfer: str = ""
    """how much of the model has come, while one is fetched"""
    resyncing: Reason | None = None
    """why the model is fetched again"""
    resumes: int | None = None
    """step of this host's newest checkpoint, while this peer looks for the network"""
    listens: float = 0.0
    """for which it looks for a later model before it goes on from that checkpoint, at most"""
    refused: tuple[str, int] = ("", 0)
    """why the last snapshots of training were not used, and how many in a row"""
    second: tuple[int, int] = (0, 0)
    """a second training process that was refused lately, and the one that is attached"""
    ended: int = 0
    """times that the training command has ended lately, and was started again"""
    unsaved: str = ""
    """why the last checkpoint failed"""


class Verdict(NamedTuple):
    """The state by its name in `STATES`, the text for people, and the causes; a healthy peer has none."""

    state: str
    text: str
    causes: tuple[str, ...]
    do: tuple[str, ...] = ()
    """what to do about addresses that do not answer, or refuse"""


class Kind(NamedTuple):
    """A state. `says` returns the parts of its text; none of them: the state does not apply."""

    name: str
    exit_code: int
    """of ``gossipdp status --check``. From 10 on nothing is wrong, and nothing is to be mended"""
    colour: str
    meaning: str
    says: Callable[[Signs], list[str]]


def spoken(seconds: float) -> str:
    """A time as people say it: "12 s", "4 min", "3 h"."""
    for unit, size, most in (("s", 1.0, 120.0), ("min", 60.0, 7200.0), ("h", 3600.0, 172_800.0)):
        if seconds < most:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def agreement(ratio: float) -> str:
    """The consensus ratio in one word."""
    return "unknown yet" if math.isnan(ratio) else "normal" if ratio <= WIDE else "wide"


def facts(signs: Signs) -> list[str]:
    """How a peer that trains gets on with the others."""
    ago = "no exchange yet"
    if signs.exchanged < math.inf:
        ago = f"last exchange {spoken(signs.exchanged)} ago with {signs.partner}"
    waits = [] if math.isnan(signs.stall) else [f"training waits {100 * signs.stall:.1f} %"]
    return [ago, f"agreement {agreement(signs.ratio)}", *waits]


def _leaving(signs: Signs) -> list[str]:
    if not signs.leaving:
        return []
    return ["the last checkpoint is being written" if signs.saving else "the exchange under way is being finished"]


def _finishing(signs: Signs) -> list[str]:
    return [signs.finishing] if signs.finishing else []


def _refused(signs: Signs) -> list[str]:
    if signs.banned:
        return [f"{signs.banned}; training goes on alone, and no member exchanges with this peer"]
    refusals = [each.text for each in signs.silent if each.cause.code in REFUSALS]
    return refusals[:SHOWN] if signs.live <= 1 else []


def _joining(signs: Signs) -> list[str]:
    if not signs.joining or signs.founds or _is_lost(signs):
        return []
    if signs.transfer:
        return [f"receiving the model: {signs.transfer}"]
    said = []
    if signs.resumes is not None:
        said.append(
            f"this host's checkpoint of step {signs.resumes} is used unless a member has a later model;"
            f" members have up to {signs.listens:.0f} s to say so"
        )
    if signs.live > 1:
        return [f"{_members(signs.live - 1)} met, but no model has come yet", *said]
    return [*(_unanswered(signs) or ["no member has answered yet"]), *said]


def _degraded(signs: Signs) -> list[str]:
    if signs.joining:
        return _lost(signs) if _is_lost(signs) else []
    said = []
    if signs.resyncing in RESYNCS:
        said.append(f"the model is fetched again, because {RESYNCS[signs.resyncing]}" + _part(signs.transfer))
    why, count = signs.refused
    if count:
        said.append(f"training's last {f'{count} snapshots were' if count > 1 else 'snapshot was'} not used: {why}")
    if signs.live <= 1 and signs.failed:
        said += [f"no other member is alive ({_failed(signs.failed)})", *_unanswered(signs)]
    elif signs.live <= 1 and signs.silent and signs.unmet >= LOST:
        said += [f"no member met for {spoken(signs.unmet)}", *_unanswered(signs)]
    elif signs.training and signs.quiet > signs.patience:
        said += [f"no exchange for {spoken(signs.quiet)}", *(_still(signs) or _unmet(signs))]
    elif signs.training and not signs.resyncing and signs.still > STUCK:
        said += _still(signs)  # members still exchange with the model as it was
    if signs.training and signs.ratio >= FAR:
        said.append(
            f"replicas are far apart: {signs.ratio:.1f} outer steps, about 1 is usual; "
            + (
                "a smaller [outer] momentum or [exchange] every brings them together"
                if signs.all_far
                else "one host alone may have diverged: compare the losses in `gossipdp members`"
            )
        )
    if signs.training and signs.unseen >= UNSEEN:
        said.append(
            f"agreement is unknown: the grids of the last {signs.unseen} exchanges were too coarse to show a distance,"
            f" the last one with {signs.partner}"
        )
    if signs.stall > MOST_STALL and not signs.sync:
        said.append(f"training spends {signs.stall:.0%} of its time in gossipdp")
    if signs.second[0]:
        pid, attached = signs.second
        said.append(f"a second training process ({pid}) is turned away: process {attached} is attached (GD-503)")
    if signs.ended >= CRASHES:
        said.append(f"training has ended {signs.ended} times within 10 min, and is started again: its output says why")
    if signs.unsaved:
        said.append(f"the last checkpoint failed: {signs.unsaved}")
    return said


def _starting(signs: Signs) -> list[str]:
    if not signs.starting or signs.training or signs.loads:
        return []
    return ["the training command starts and has not attached yet; importing torch takes some seconds"]


def _idle(signs: Signs) -> list[str]:
    if signs.training:
        return []
    if signs.relay:
        return ["this peer only carries for others: it has no model, and does not train"]
    if signs.loads:
        return ["a training process is attached, and loads the model"]
    if signs.joining:
        return ["the network has no model yet: the first training process of this host gives it one"]
    since = "has attached yet" if signs.idle == math.inf else f"has been attached for {spoken(signs.idle)}"
    return [f"no training process {since}: this peer keeps the model and exchanges nothing"]


def _alone(signs: Signs) -> list[str]:
    if signs.live <= 1:
        still = f"no other member for {spoken(signs.unmet)}" if signs.unmet >= LONELY else "no other member"
        lets = "`gossipdp invite` lets another host in"
        return [still, *_unanswered(signs), f"training goes on; {lets}", *_reach(signs)]
    # A member that begins to train says so with its next ping, which may come after its first exchange.
    return (
        []
        if signs.train or signs.exchanged <= signs.patience
        else [f"{_members(signs.live - 1)}, but none of them trains"]
    )


def _healthy(signs: Signs) -> list[str]:
    lately = [each for each in signs.failed if each[1] < GONE]
    peers = f"{signs.live} of {signs.live + len(lately)} peers" + (f" ({_failed(lately)})" if lately else "")
    return [", ".join([peers, *facts(signs)])]


STATES: Final = (
    Kind("leaving", 13, "yellow", "the peer says goodbye, saves and stops", _leaving),
    Kind("finishing", 14, "yellow", "training is over, and peers average their final model", _finishing),
    Kind("refused", 5, "red", "every member that answers refuses this peer", _refused),
    Kind("joining", 11, "yellow", "this peer does not have the network's model yet", _joining),
    Kind("degraded", 1, "red", "something needs attention, but training goes on", _degraded),
    Kind("starting", 15, "yellow", "the training command has just been started", _starting),
    Kind("idle", 12, "yellow", "no training process is attached", _idle),
    Kind("alone", 10, "yellow", "no other member trains, as on a founder that waits for others", _alone),
    Kind("healthy", 0, "green", "this peer trains and exchanges", _healthy),
)
"""the states of a peer, the most severe first"""


def judge(signs: Signs) -> Verdict:
    """The verdict on a peer with these signs."""
    for kind in STATES:
        if said := kind.says(signs):
            causes = () if kind.exit_code == 0 else tuple(said)
            do = _advice(signs, said) if kind.colour == "red" else ()
            return Verdict(kind.name, f"{kind.name}: {'; '.join([*said, *(f'do: {each}' for each in do)])}", causes, do)
    raise AssertionError("the last state always applies")


# -- parts of the texts ----------------------------------------------------------------------------------------------


def _members(count: int) -> str:
    return f"{count} other member" + "s" * (count != 1)


def _part(transfer: str) -> str:
    return f": {transfer}" if transfer else ""


def _failed(failed: Sequence[tuple[str, float]]) -> str:
    latest = sorted(failed, key=lambda each: each[1])
    more = f" and {len(latest) - SHOWN} more" if len(latest) > SHOWN else ""
    return ", ".join(f"{name} failed {spoken(ago)} ago" for name, ago in latest[:SHOWN]) + more


def _unanswered(signs: Signs) -> list[str]:
    return [each.text for each in signs.silent[:SHOWN]]


def _advice(signs: Signs, said: Sequence[str]) -> tuple[str, ...]:
    """What to do about each address that the verdict names, and about a peer that knows none."""
    if signs.joining and not signs.silent:
        return ("name a member: --seed HOST:PORT, or join with its invite",)
    return tuple(dict.fromkeys(each.do for each in signs.silent if each.do and each.text in said))


def _is_lost(signs: Signs) -> bool:
    """Whether this peer has no model and has looked for the network in vain for long."""
    waits = signs.joining and not signs.founds and not signs.transfer and signs.live <= 1
    return waits and signs.unmet >= max(LOST, signs.listens)


def _lost(signs: Signs) -> list[str]:
    none = ["no address of a member is known, or none has answered yet"]
    return [f"not yet in the network after {spoken(signs.unmet)}", *(_unanswered(signs) or none)]


def _reach(signs: Signs) -> list[str]:
    """How to check whether others can reach a peer that has been alone for long."""
    if signs.unmet < LONELY:
        return []
    if not signs.dialled:
        return ["no other host can dial this one, so none can join by its invite (docs/networking)"]
    host, _, port = signs.dialled[0].rpartition(":")
    named = ", ".join(signs.dialled[:SHOWN])
    if all(address.startswith(LOOPBACK) for address in signs.dialled):
        return [f"the invite names only {named}, which no other host can dial: see --advertise (docs/networking)"]
    return [
        f"the invite names {named}: from another host `nc -vz {host.strip('[]')} {port}` must succeed (docs/networking)"
    ]


def _still(signs: Signs) -> list[str]:
    """For how long the training process has made no round, if that is unusual."""
    if signs.still <= signs.patience:
        return []
    usual = "" if math.isnan(signs.round_seconds) else f", and one usually takes {spoken(signs.round_seconds)}"
    return [f"this host's training has made no round for {spoken(signs.still)}{usual}"]


def _unmet(signs: Signs) -> list[str]:
    """Why a peer that trains among others exchanges nothing."""
    tried = ", ".join(f"{reason} ({count})" for reason, count in signs.fruitless)
    return [*_unanswered(signs), *([f"exchanges without a result: {tried}"] if tried else [])]
