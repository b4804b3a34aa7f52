"""Members and a matching among them."""

from random import Random

from gossipdp.protocol.pairwise.matching import Matching, MatchingConfig
from gossipdp.protocol.wire.messages import Member, State

IDS = [bytes([letter]) * 32 for letter in b"abcdefgh"]
ALIVE = [Member(peer, "", "h:1", 1, 0, State.ALIVE) for peer in IDS]


def matching(seed=0, *, sync=False, **changes):
    return Matching(MatchingConfig(**changes), Random(seed), sync=sync)
