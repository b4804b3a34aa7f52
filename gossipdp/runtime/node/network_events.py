"""What a transport reports: messages for the peer, and links, failed dials and refusals for the operator."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from gossipdp.error_codes import ADVICE
from gossipdp.protocol.wire.messages import relay_of, short
from gossipdp.runtime.network import events as network
from gossipdp.runtime.network.dial_causes import DialFault, dial_text
from gossipdp.runtime.network.duplicate_identity import judge
from gossipdp.runtime.network.refusals import Refusals
from gossipdp.runtime.node.context import NodeContext
from gossipdp.runtime.observability.notices import name_of

__all__ = ["NetworkEvents"]

log = logging.getLogger("gossipdp.node")

RESTARTS: Final = 60.0
"""seconds for which a member that was met may be out of reach without a notice: it is started again"""


class NetworkEvents:
    """Acts on what the transport reports.

    Args:
        start: mark of this daemon's start.
        answer_invite: answers a host that shows an invite, with "" or why it may not come in.
        dial: dials a peer directly, although a relay carries its link.
        wall: seconds since 1970.
    """

    def __init__(
        self,
        context: NodeContext,
        refusals: Refusals,
        *,
        start: bytes,
        answer_invite: Callable[[network.InviteShown, str], None],
        dial: Callable[[bytes, Sequence[str]], None],
        wall: Callable[[], float],
    ) -> None:
        self._peer, self._notices, self._incarnation = context.peer, context.notices, context.incarnation
        self._unanswered, self._refusals = context.status.unanswered, refusals
        self._status = context.status
        self._start, self._records = start, context.records
        self._answer_invite, self._dial, self._wall = answer_invite, dial, wall
        self._heard_run = b""
        """a run that is not remembered yet: a single member may claim it, and its model is not here"""

    def handle(self, event: network.TransportEvent, now: float) -> None:
        """Feed the peer, and tell the operator.

        Raises:
            RefusedError, MismatchError: GD-203, GD-204, GD-302: every seed refuses this peer.
            CopyError, OvertakenError: GD-205, see `duplicate_identity`.
        """
        match event:
            case network.Received(peer, _, frames):
                self._peer.receive(frames, peer, now)
            case network.LinkDown(peer, reason):
                self._peer.link_down(peer, reason, now)
            case network.LinkUp():
                self._link_up(event)
            case network.CarriedBy(relay, taken, reason):
                view = self._peer.view
                text = "%s carries messages of others to this peer" if taken else "%s does not carry to this peer: %s"
                log.info(text, *((name_of(view, relay),) if taken else (name_of(view, relay), reason)))
                self._peer.carried(relay, taken, now)
            case network.DialFailed():
                self._dial_failed(event, now)
            case network.HandshakeRefused() | network.Crowded() | network.Flooded():
                self._notices.notice(*network.code_and_text(event), now)
            case network.InviteShown(_, _, decision, receipt):
                self._answer_invite(event, self._peer.redeem(decision, receipt, self._wall(), now))
            case network.CopyMet(address, incarnation, start):
                error = judge((self._incarnation, self._start), (incarnation, start), address)
                if error is not None and not self._peer.view.leaving:
                    raise error
                self._notices.notice("GD-205", f"a copy of this home was started at {address}", now)
            case network.Dialable():
                self._dialable(event, now)
            case network.RunLearned(run):
                self._heard_run = run
                log.info("this peer belongs to run %s", run.hex()[:8])
                if self._peer.view.ready:
                    self.model_ready()

    def model_ready(self) -> None:
        """This peer holds a model: the run that it belongs to is confirmed."""
        if self._heard_run:
            self._records.learn_run(self._heard_run)
            self._heard_run = b""

    def _link_up(self, event: network.LinkUp) -> None:
        view = self._peer.view
        self._refusals.met_member()
        way = "inbound" if event.inbound else "outbound"
        if event.via:
            log.info("link to %s through %s (%s)", name_of(view, event.peer), name_of(view, event.via), way)
            self._dial_directly(event.peer)
        else:
            self._unanswered.answered(event.address)
            log.info("link to %s at %s (%s)", name_of(view, event.peer), event.address, way)

    def _dial_directly(self, peer: bytes) -> None:
        member = self._peer.view.members.get(peer)
        self._dial(peer, () if member is None else member.own_addresses)

    def _dial_failed(self, event: network.DialFailed, now: float) -> None:
        if relay := relay_of(event.address):
            view = self._peer.view
            names = name_of(view, event.peer), name_of(view, relay)
            log.info("cannot reach %s through %s: %s", *names, event.reason)
            return self._peer.link_down(event.peer, event.reason, now)
        code, dialled = event.code, event.address or short(event.peer)
        faults, do = [cause.fault for cause in event.causes], event.do or ADVICE.get(code, "")
        no_peer = "no peer answers there: " if code == "GD-101" else ""
        if faults[-1:] == [DialFault.LISTENS]:
            log.info("%s: no peer listened there at first, but one does now; it is dialled again soon", dialled)
        elif not (code == "GD-101" and self._peer.view.left(event.address)):
            again = self._unanswered.failed(dialled, event.causes, do, now)
            own = not event.peer and faults == [DialFault.LEADS_BACK]
            if not (code == "GD-101" and (own or self._may_restart(event.address, now))):
                self._notices.notice(code, dial_text(dialled, event.causes, no_peer), now, event.do, address=dialled)
            elif not again:
                log.info("%s; it is dialled again", dial_text(dialled, event.causes, "no member there now: "))
        if event.peer:
            self._peer.link_down(event.peer, event.reason, now)
        if (error := self._refusals.failed(event.address, code, event.reason, ours=event.ours)) is not None:
            raise error
        return None

    def _may_restart(self, address: str, now: float) -> bool:
        """Whether a member that this peer has met is at `address`, and has been out of reach for a short time."""
        view = self._peer.view
        met = (member for member in view.members.values() if view.heard(member.id))
        return self._unanswered.silent_for(address, now) < RESTARTS and any(address in one.addresses for one in met)

    def _dialable(self, event: network.Dialable, now: float) -> None:
        dropped, usable = ", ".join(event.dropped), ", ".join(event.addresses)
        if event.found:
            found = ", ".join(event.found)
            log.info("members see this peer come from %s, and can dial it there: it is advertised from now on", found)
            self._status.choose("members see this peer come from there, and have dialled it", dialled=True)
        elif not event.dropped:
            log.info("members can dial this peer at %s again", usable)
            self._status.choose("members have dialled it there", dialled=True)
        if event.dropped:
            self._status.choose(f"members could not reach {dropped}")
        if event.dropped and event.addresses:
            text = "members could not reach %s, tried %d times: it is no longer advertised, but %s is"
            log.warning(text, dropped, event.opinions, usable)
        elif event.dropped:
            ports = " and ".join(dict.fromkeys(address.rpartition(":")[2] for address in event.dropped))
            seen = f"members could not reach {dropped}, tried {event.opinions} times"
            do = f"open TCP port {ports} to the other hosts, or set [network] advertise to where they reach it"
            text = f"no member can dial this peer, so it goes on outbound-only: {seen}; {do}"
            self._notices.notice("GD-102", text, now)
        self._peer.advertise(event.addresses, now)
