"""What the tests of admission share: an operator whose signature is a hash, and decisions of it."""

from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.admission.statements import NETWORK, SECRET, receipt, signed
from gossipdp.protocol.wire.messages import BOX_BYTES, Decision, HostInvite, NewSecret, Verdict
from simulations.simulator.host import sign, verify

OPERATOR, STRANGER = b"o" * 32, b"s" * 32


def decision(verdict, subject=NETWORK, number=1, *, operator=OPERATOR, network="", **about):
    return signed(Decision(number, verdict, subject, **about), network, lambda data: sign(operator, data))


def ban(peer, number=1, **about):
    return decision(Verdict.BANNED, peer, number, **about)


def closed(*allowed, number=1):
    return decision(Verdict.CLOSED, number=number, allowed=tuple(allowed))


def invited(key, number=1, *, uses=1, expires=1000, generation=0):
    return decision(Verdict.INVITED, key, number, name="gpu2", invite=HostInvite(expires, uses, generation))


def revoked(key, number=1, *, uses=1, expires=1000, generation=0):
    return decision(Verdict.REVOKED, key, number, name="gpu2", invite=HostInvite(expires, uses, generation))


def renewed(*named, number=1, replaces=0, until=0):
    made = NewSecret(replaces, until, bytes(32), tuple(bytes(BOX_BYTES) for _ in named))
    return decision(Verdict.RENEWED, SECRET, number, allowed=named, secret=made)


def received(of, peer, key=None, network=""):
    """The receipt of `peer`, by the invite's key or its own, as the decision demands."""
    return receipt(of, peer, network, lambda data: sign(key or (peer if of.subject == SECRET else of.subject), data))


def register(me=b"m" * 32, **options):
    return Admission(me, operator=OPERATOR, verify=verify, **options)
