"""Hosts that finish together tell the same counts, whatever they know of a member that was lost."""

from functools import partial

import msgspec

from gossipdp.protocol.membership.signatures import Signer
from gossipdp.protocol.wire.messages import Phase
from simulations.simulator.host import sign, verify
from tests.protocol.finish_rig import Ending


def told(town, *indices):
    """What these peers tell of the run once they have ended; None before."""
    return [town.peer(index).view.final_counts for index in indices]


def late_report(town, knows, lost):
    """A further report of the member `lost` reaches the peer `knows` alone."""
    board = town.peer(knows)._progress
    known = board.of(town.hosts[lost].id)
    late = msgspec.structs.replace(
        known, clock=known.clock + 10, steps=known.steps + 10, samples=known.samples + 80, rounds=known.rounds + 2
    )
    board.merge([Signer(partial(sign, known.id), verify).sign_progress(late)])
    return late


def test_the_last_report_of_a_lost_peer_that_reaches_one_of_the_finished_late_changes_nothing():
    town = Ending.trained(4)
    town.net.stop(town.hosts[3])
    town.run(10.0)
    town.finish(0, 1, 2)
    while not all(town.peer(index).view.me.phase is Phase.DONE for index in range(3)):
        town.run(0.01)
    late_report(town, 0, 3)
    town.finished(0, 1, 2)
    first, second, third = told(town, 0, 1, 2)
    assert first == second == third
    reports = [town.peer(0).view.report(town.hosts[index].id) for index in range(3)]
    assert first.steps == sum(report.steps for report in reports) > 0
    assert first.samples == sum(report.samples for report in reports) > 0


def test_the_clock_of_a_leader_that_was_lost_is_that_of_all_though_one_alone_has_heard_its_last_report(monkeypatch):
    town = Ending.trained(4)
    town.net.stop(town.hosts[3])
    late = late_report(town, 0, 3)
    for board in (town.peer(index)._progress for index in range(3)):
        # As on an overdrawn budget, a peer tells its own report alone.
        monkeypatch.setattr(board, "page", lambda limit, to=b"", page=board.page: page(1, to))
    town.finish(0, 1, 2)
    town.finished(0, 1, 2)
    first, second, third = told(town, 0, 1, 2)
    assert first == second == third and first.clock == late.clock
    assert {town.peer(index).view.state_clock for index in range(3)} == {late.clock}
