"""The operator decides while links are up."""

from __future__ import annotations

from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.admission.statements import signed
from gossipdp.protocol.wire.messages import Decision, Lane, Verdict
from gossipdp.runtime.network.events import DialFailed, HandshakeRefused, LinkDown
from gossipdp.runtime.network.identity import Identity
from tests.runtime.network.transports import PING, Net, at, name

OPERATOR = Identity.generate()


def following(identity: Identity) -> Admission:
    return Admission(identity.id, network="tiny", operator=OPERATOR.id, verify=Identity.verify)


def decision(verdict: Verdict, subject: bytes, number: int, *allowed: bytes) -> Decision:
    return signed(Decision(number, verdict, subject, allowed=allowed), "tiny", OPERATOR.sign)


def test_ban_closes_the_link_and_the_way_back__and_ends_with_the_ban(net: Net) -> None:
    me = Identity.generate()
    admission = following(me)
    b, a, c = net.peer(me, admission=admission), net.peer(), net.peer()
    net.link(a, b)
    net.link(c, b)
    assert admission.take([decision(Verdict.BANNED, name(a), 1)])
    b.admission_changed()
    net.until(lambda: net.events(a, LinkDown) and net.events(b, LinkDown))
    assert "the operator has banned it" in net.events(a, LinkDown)[0].reason
    assert [link.peer for link in b.links()] == [name(c)]
    net.forget()
    a.send(name(b), at(b), Lane.CONTROL, PING)
    net.until(lambda: net.events(a, DialFailed) and net.events(b, HandshakeRefused))
    assert net.events(a, DialFailed)[0].code == "GD-204"
    assert admission.take([decision(Verdict.NONE, name(a), 2)])
    b.admission_changed()
    net.until(lambda: a.send(name(b), at(b), Lane.CONTROL, PING) or a.links())
    net.until(lambda: len(b.links()) == 2)


def test_closing_the_network_closes_the_links_with_those_not_allowed(net: Net) -> None:
    me = Identity.generate()
    admission = following(me)
    b, a, c = net.peer(me, admission=admission), net.peer(), net.peer()
    net.link(a, b)
    net.link(c, b)
    admission.take([decision(Verdict.CLOSED, b"", 1, name(c))])
    b.admission_changed()
    net.until(lambda: net.events(a, LinkDown))
    assert [link.peer for link in b.links()] == [name(c)]
