"""An invite for one host, shown to a member with real sockets."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gossipdp.errors import GossipdpError
from gossipdp.protocol.admission.statements import signed
from gossipdp.protocol.wire.messages import Decision, HostInvite, Verdict
from gossipdp.runtime.network import invite as tokens
from gossipdp.runtime.network.events import HandshakeRefused, InviteShown
from gossipdp.runtime.network.identity import Identity, NetworkSecret, digest_of
from gossipdp.runtime.network.proxy import Proxy
from gossipdp.runtime.network.redeeming import redeem
from tests.runtime.network.sides import FIRST, OPERATOR, SECOND, Side, renewal
from tests.runtime.network.transports import Net, at

KEY, JOINER = Identity(b"k" * 32), Identity(b"j" * 32)


def token(
    *seeds: str, secret: NetworkSecret = SECOND, operator: Identity = OPERATOR, **changes: Any
) -> tokens.HostInvite:
    invite = HostInvite(1000, 1, secret.generation)
    decision = signed(Decision(1, Verdict.INVITED, KEY.id, "gpu2", invite=invite), "tiny", operator.sign)
    keys = secret.curve_server_keys().public, digest_of(secret.reveal_generation())
    return replace(tokens.HostInvite("tiny", seeds, operator.id, *keys, KEY.reveal(), decision), **changes)


def ask(
    net: Net, member: Side, invite: tokens.HostInvite, identity: Identity = JOINER, proxy: Proxy | None = None
) -> NetworkSecret | str:
    """What comes of it: the secret, or the code. The member's register decides."""
    outcome: list[NetworkSecret | str] = []

    def run() -> None:
        try:
            outcome.append(redeem(invite, identity, proxy=proxy, patience=0.0))
        except GossipdpError as error:
            outcome.append(f"{error.code} {error.seen}")

    thread = threading.Thread(target=run)
    thread.start()

    def over() -> bool:
        for shown in net.take(member.transport, InviteShown):
            why_not = member.admission.redeem(shown.decision, shown.receipt, member.wall)
            member.transport.answer_invite(shown, why_not)
        return bool(outcome)

    net.until(over)
    thread.join()
    return outcome[0]


@pytest.fixture
def member(net: Net) -> Side:
    return Side(net, SECOND, renewal(SECOND.generation, 0))


def test_member_gives_the_secret_to_the_holder_of_the_invite__once(net: Net, member: Side) -> None:
    invite = token(at(member.transport))
    assert ask(net, member, invite) == SECOND
    assert member.admission.holders(KEY.id) == {JOINER.id}
    assert ask(net, member, invite) == SECOND, "the same host may ask again, as after a crash"
    assert "1 of 1 hosts" in str(ask(net, member, invite, Identity.generate()))
    net.until(lambda: net.events(member.transport, HandshakeRefused))
    assert [event.code for event in net.events(member.transport, HandshakeRefused)] == ["GD-209"]


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (lambda at: token(at, operator=Identity.generate()), "GD-209 the operator of this network has not signed"),
        (lambda at: token(at, key=Identity.generate().reveal()), "GD-209 it does not hold the invite's key"),
        (lambda at: token(at, secret=FIRST.renewed(7, b"7" * 32)), "GD-208 the invite is for another network secret"),
        (lambda at: token(at, network="other"), "GD-203"),
        (lambda at: token(at, digest=bytes(32)), "GD-202 the secret that 127.0.0.1"),
        (lambda at: token(at, curve=NetworkSecret.generate().curve_server_keys().public), "GD-101"),
    ],
)
def test_invite_that_is_not_right_gets_nothing(
    net: Net, member: Side, made: Callable[[str], tokens.HostInvite], code: str
) -> None:
    assert str(ask(net, member, made(at(member.transport)))).startswith(code)


def test_expired_and_revoked_invites_and_banned_hosts_get_nothing(net: Net, member: Side) -> None:
    invite = token(at(member.transport))
    member.wall = 1000.0
    assert "has expired" in str(ask(net, member, invite))
    member.wall = 0.0
    member.admission.take([signed(Decision(2, Verdict.BANNED, JOINER.id), "tiny", OPERATOR.sign)])
    assert "banned" in str(ask(net, member, invite))
    member.transport.admission_changed()
    assert str(ask(net, member, invite)).startswith("GD-101"), "its key completes no handshake now"
    member.admission.take(
        [signed(Decision(3, Verdict.REVOKED, KEY.id, invite=invite.decision.invite), "tiny", OPERATOR.sign)]
    )
    assert "revoked" in str(ask(net, member, invite, Identity.generate()))


def test_next_address_is_tried_and_without_any_answer_each_is_named(net: Net, member: Side) -> None:
    dead = "127.0.0.1:1"
    assert ask(net, member, token(dead, at(member.transport))) == SECOND
    told = str(ask(net, member, token(dead, "nowhere.invalid:4710")))
    assert told.startswith("GD-101") and "127.0.0.1:1 refused" in told and "nowhere.invalid:4710" in told


def test_invite_survives_its_text_and_shows_no_key() -> None:
    invite = token("10.0.0.1:4710", "[fd00::1]:4710")
    assert tokens.decode_invite(invite.encode()) == invite
    assert KEY.reveal().hex() not in repr(invite)
    plain = tokens.Invite("tiny", SECOND, ("10.0.0.1:4710",), OPERATOR.id)
    assert tokens.decode_invite(plain.encode()) == plain
    assert len(invite.encode()) < 900
