"""Peers whose network's secret was renewed, for the tests of the network. Not a test."""

from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.admission.statements import SECRET, signed
from gossipdp.protocol.wire.messages import Decision, NewSecret, Verdict
from gossipdp.runtime.network.identity import Identity, NetworkSecret, digest_of
from tests.runtime.network.transports import Net

FIRST = NetworkSecret(bytes(range(32)))
SECOND, THIRD = FIRST.renewed(2000, b"2" * 32), FIRST.renewed(2000, b"2" * 32).renewed(3000, b"3" * 32)
OPERATOR = Identity(bytes(32))


def renewal(number: int, replaces: int, *named: bytes, until: int = 0) -> Decision:
    boxes = tuple(Identity.seal(peer, b"x" * 32) for peer in named)
    secret = NewSecret(replaces, until, digest_of(b"x" * 32), boxes)
    return signed(Decision(number, Verdict.RENEWED, SECRET, allowed=named, secret=secret), "tiny", OPERATOR.sign)


class Side:
    """One peer with its register, on a wall clock of its own."""

    def __init__(self, net: Net, secret: NetworkSecret, *decisions: Decision, identity: Identity | None = None) -> None:
        self.identity, self.wall = identity or Identity.generate(), 0.0
        self.admission = Admission(
            self.identity.id, network="tiny", operator=OPERATOR.id, verify=Identity.verify, decisions=decisions
        )
        self.transport = net.peer(self.identity, secret=secret, admission=self.admission, wall=lambda: self.wall)

    @property
    def up(self) -> bool:
        return bool(self.transport.links())
