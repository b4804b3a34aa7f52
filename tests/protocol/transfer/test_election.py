"""Which members an election asks what they hold."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.transfer.claims import Held
from gossipdp.protocol.transfer.election import ASKS, Election
from gossipdp.protocol.wire.messages import Has, Standing
from tests.protocol.transfer.bootstrap_rig import B, record

PEERS = [bytes([number]) * 32 for number in range(100, 104 + ASKS)]
LATEST = PEERS[0]


def test_of_many_members_the_one_with_the_latest_checkpoint_is_asked_in_every_period() -> None:
    outputs = Outputs()
    membership = SimpleNamespace(
        me=record(B), members={peer: record(peer) for peer in PEERS}, config=SimpleNamespace(join_interval=1.0)
    )
    election = Election(membership, random=Random(1), outputs=outputs, resume_after=99.0, tolerance=10)
    election.begin(0.0, [], Held(100, 10), alone=False)
    election.meet(PEERS, 0.0)
    election.hear(Standing(1, Has.CHECKPOINT, 500, 50, False), LATEST, 0.0)
    for period in range(10):
        outputs.messages.clear()
        election.handle_timer(float(period))
        asked = [said.to for said in outputs.messages]
        assert asked[0] == LATEST and len(set(asked)) == len(asked) == ASKS
