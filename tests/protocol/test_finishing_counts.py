"""Hosts that finish together tell the same counts, whenever the last reports reach them."""

from __future__ import annotations

from functools import partial

import msgspec

from gossipdp.protocol.events import Finished
from gossipdp.protocol.membership.signatures import Signer
from gossipdp.protocol.wire.messages import Phase
from simulations.simulator.host import sign, verify
from tests.protocol.finish_rig import Ending


def tells(town, told, seconds):
    """Run for a while, and note what each peer tells of the network as it ends."""
    until = town.net.now + seconds
    while town.net.now < until:
        town.run(0.01)
        for index in range(3):
            if town.of(index, Finished):
                progress = town.peer(index).progress
                told.setdefault(index, (progress.clock(), progress.steps(), progress.samples()))


def test_the_finished_tell_the_same_counts_though_the_last_report_of_a_lost_peer_reaches_one_of_them_late():
    town = Ending.trained(4)
    town.net.stop(town.hosts[3])
    town.run(10.0)
    town.finish(0, 1, 2)
    first = town.peer(0)
    while not all(town.peer(index).membership.me.phase is Phase.DONE for index in range(3)):
        town.run(0.01)
    told = {}
    tells(town, told, 0.3)
    lost = town.hosts[3].id
    known = first.progress.of(lost)
    late = msgspec.structs.replace(known, steps=known.steps + 5, samples=known.samples + 40)
    first.progress.merge([Signer(partial(sign, lost), verify).sign_progress(late)])
    while len(told) < 3:
        tells(town, told, 0.05)
    assert told[0] == told[1] == told[2] and told[0][1] == first.progress.steps()
