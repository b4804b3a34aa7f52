"""What the tests of admission share: an operator whose signature is a hash, and decisions of it."""

from __future__ import annotations

from gossipdp.protocol.admission.register import NETWORK, Admission, signed
from gossipdp.protocol.wire.messages import Decision, Verdict
from simulations.simulator.host import sign, verify

OPERATOR, STRANGER = b"o" * 32, b"s" * 32


def decision(verdict, subject=NETWORK, number=1, *, operator=OPERATOR, network="", **about):
    return signed(Decision(number, verdict, subject, **about), network, lambda data: sign(operator, data))


def ban(peer, number=1, **about):
    return decision(Verdict.BANNED, peer, number, **about)


def closed(*allowed, number=1):
    return decision(Verdict.CLOSED, number=number, allowed=tuple(allowed))


def register(me=b"m" * 32, **options):
    return Admission(me, operator=OPERATOR, verify=verify, **options)
