"""A peer that follows another side, its timer and its tables, and several machines against each other."""

import math
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from gossipdp.errors import LocalProtocolError
from gossipdp.protocol import jobs
from gossipdp.protocol.course.course import WANTED
from gossipdp.protocol.course.lag import ASKING, BEHIND, LISTEN
from gossipdp.protocol.course.rules import NO_LINE
from gossipdp.protocol.course.table import COURSE, GAP, Action, Event, Gap, Reason, State, course_diagram
from gossipdp.protocol.events import ResyncBegan, ResyncEnded
from gossipdp.protocol.membership.progress import Own
from gossipdp.protocol.state_machine import next_state
from gossipdp.protocol.wire.messages import Line, Progress, StateProbe, StateRequest
from gossipdp.protocol.wire.messages import State as Liveness
from tests.protocol.course.course_rig import (
    FETCHED,
    GREATER,
    HEARD,
    LONG,
    MINE,
    PERIOD,
    ROUNDS,
    A,
    C,
    D,
    E,
    F,
    Fetching,
    Side,
    loser,
)


def test_loser_saves_first_and_fetches_only_when_no_exchange_is_under_way():
    b = loser()
    assert list(b.outputs.jobs) == [jobs.Keep(Reason.APART)] and b.held[-1]
    assert not b.joiners[-1].sought
    b.quiet = False
    b.keep()
    assert not b.joiners[-1].sought
    b.quiet = True
    b.step()
    assert b.joiners[-1].sought == [D, E]


def test_loser_gives_up_winners_out_of_reach_once_and_follows_them_when_it_reaches_them():
    """Otherwise it would begin again and again, with a checkpoint each time.

    It gives up sooner if a peer asks for its model.
    """
    b = loser()
    b.view.reaches = lambda peer: peer not in (D, E)
    b.keep()
    b.course.receive(StateRequest(1), [], F, 0, b.now)
    b.wait((WANTED + 2) * PERIOD)
    assert [event.complete for event in b.of(ResyncEnded)] == [False]
    b.wait(60 * PERIOD)
    assert len(b.of(ResyncBegan)) == 1
    b.view.reaches = lambda peer: True
    b.wait(PERIOD)
    assert len(b.of(ResyncBegan)) == 2


def test_loser_takes_the_line_over_with_the_model_and_its_old_side_is_apart():
    b = loser()
    b.keep()
    b.fetched()
    assert b.line == GREATER and b.apart == {A, C} and not b.course.resyncing
    assert b.me.replaced_at == [FETCHED.clock] and b.held[-1] is False
    [ended] = b.of(ResyncEnded)
    assert (ended.reason, ended.source, ended.complete) == ("apart", D, True)
    b.hear(A, GREATER, apart=True)
    b.hear(C, replace(MINE, maker=C), apart=True)
    assert b.apart == {C}


def test_loser_that_joins_one_of_three_sides_holds_the_third_apart():
    b = loser(F)
    b.hear(F, Line(1, 4, 1, 1, F), apart=True)
    b.keep()
    b.fetched()
    assert b.apart == {A, C, F} and b.line == GREATER


def test_loser_goes_on_with_another_of_the_winning_side_when_its_source_is_gone():
    b = loser()
    b.keep()
    b.see(D, Liveness.FAILED)
    assert b.joiners[-1].sought == [E] and b.course.resyncing is Reason.APART


def test_loser_fetches_from_members_that_train_if_any_does():
    """Others hold a spare copy, which may be of the beginning."""
    b = Side()
    b.view.idle = {D}
    b.divide(D, E)
    for peer in (D, E):
        b.hear(peer, GREATER)
    b.wait(HEARD + PERIOD)
    b.keep()
    assert b.joiners[-1].sought == [E]
    b.view.idle = {D, E}
    b.step()
    assert b.joiners[-1].sought == [D, E]


@pytest.mark.parametrize("busy", [False, True])
def test_peer_that_waits_for_a_model_of_its_own_side_turns_to_a_greater_one(busy):
    """It keeps waiting without a gap. A model that is coming is taken first."""
    b = Side(waits=True)
    b.step()
    assert b.course.resyncing is Reason.LATE and b.joiners[-1].sought == [A, C]
    b.divide(D, E, rounds=ROUNDS)
    for peer in (D, E):
        b.hear(peer, GREATER)
    assert b.undecided and b.course.timer() < math.inf
    b.joiners[-1].busy = busy
    b.wait(HEARD + PERIOD)
    assert not b.undecided
    if busy:
        assert b.course.resyncing is Reason.LATE and not b.of(ResyncEnded)
        b.joiners[-1].busy = False
        b.step()
    assert b.course.resyncing is Reason.APART
    assert [(event.reason, event.complete) for event in b.of(ResyncEnded)] == [("late", False)]
    b.keep()
    assert b.joiners[-1].sought == [D, E]


def test_loser_without_any_source_left_goes_on_with_its_own_model():
    b = loser()
    b.keep()
    for peer in (D, E):
        b.see(peer, Liveness.FAILED)
    b.wait(60.0)
    assert not b.course.resyncing and b.held[-1] is False and not b.me.replaced_at
    assert [event.complete for event in b.of(ResyncEnded)] == [False]


def test_loser_whose_own_model_is_wanted_does_not_wait_long_for_sources_that_are_gone():
    """The other model's holder came back without it and asks for this one. There may be no other model any more."""
    b = loser()
    b.keep()
    b.course.receive(StateRequest(1), [], F, 0, b.now)
    b.wait(2 * WANTED * PERIOD)
    assert b.course.resyncing is Reason.APART  # there are sources, and they serve joiners too
    for peer in (D, E):
        b.see(peer, Liveness.FAILED)
    b.see(D, incarnation=2)
    b.course.receive(StateRequest(1), [], F, 0, b.now)
    b.wait((WANTED + 2) * PERIOD)
    assert [event.complete for event in b.of(ResyncEnded)] == [False] and b.course._gives(StateRequest(1), D)


@pytest.mark.parametrize("complete", [True, False])
def test_fetched_chunks_stay_if_all_are_here_and_are_taken_back_if_not(complete):
    b = loser()
    b.keep()
    for chunk, good in ((2, True), (0, True), (1, False)):
        b.course.job_done(jobs.Resync(chunk, b"", b""), jobs.Checked(good), b.now)
    before = len(b.outputs.jobs)
    if complete:
        b.fetched()
    else:
        for peer in (D, E):
            b.see(peer, Liveness.FAILED)
        b.wait(60.0)
    back = not complete
    assert list(b.outputs.jobs)[before:] == [jobs.Conclude(0, back), jobs.Conclude(2, back)]


def test_two_peers_that_follow_each_other_both_stop_in_time():
    b = loser()
    b.keep()
    b.wait(400 * PERIOD)
    assert not b.joiners[0].busy and [event.complete for event in b.of(ResyncEnded)][:1] == [False]


def test_peer_gives_no_state_while_it_holds_parts_of_two_models():
    b = loser()
    assert not b.course._gives(StateRequest(1), A)
    b.keep()
    b.fetched()
    assert b.course._gives(StateRequest(1), A)


def test_peer_that_suspects_it_is_long_out_of_date_gives_no_state():
    b = Side()
    b.progress.merge([Progress(peer, 10 * LONG, 1, 1, 1) for peer in (A, C)])
    b.view.buried = 1
    b.step()
    assert not b.course._gives(StateRequest(1), D)
    b.wait(2 * ASKING * PERIOD)
    assert b.course._gives(StateRequest(1), D), "there was no network to follow"


def test_run_ends_while_the_peer_asks_whether_it_lags__it_exchanges_and_gives_its_state_again():
    """Two peers waited for each other for an hour: one asked for ever, so it exchanged nothing and gave no model."""
    b = Side()
    b.progress.merge([Progress(peer, 10 * LONG, 1, 1, 1) for peer in (A, C)])
    b.view.buried = 1
    b.step()
    assert b.held[-1] and not b.course._gives(StateRequest(1), D)
    b.ending.begun = True
    b.step()
    assert not b.held[-1] and b.course._gives(StateRequest(1), D)
    b.wait(2 * ASKING * PERIOD)
    assert not b.held[-1] and not b.of(ResyncBegan)


def test_only_followers_of_this_side_get_samples_while_there_are_two_sides():
    """A joiner of the other side would find its own side's model implausible."""
    b = Side()
    b.divide(D)
    assert not b.course._gives(StateProbe(1, (0,)), F) and b.course._gives(StateRequest(1), F)
    b.hear(D, Line(1, 1, 1, 1, D))
    assert b.course._gives(StateProbe(1, (0,)), D)


def test_joiner_holds_the_line_that_its_source_has_told():
    b = Side(side=(), joins=True)
    b.see(D, at=0.0)
    b.hear(D, GREATER, apart=True)
    assert not b.apart and b.line == NO_LINE
    b.ready(D, [], b.now)
    assert b.line == GREATER


# -- two machines against each other ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(50))
def test_in_any_order_of_messages_all_peers_end_at_the_greatest_line(seed):
    """Three sides of any sizes. Every message may be lost or late, and peers notice at different times."""
    random = Random(seed)
    names = [bytes([letter]) * 32 for letter in range(97, 97 + 7)]
    sides = [names[:3], names[3:5], names[5:]]
    peers = {}
    for side in sides:
        for name in side:
            peer = peers[name] = Side(side=(), me=name)
            peer.own = Own(random.randrange(100, 110), 20, 0, 0.0)
            for other in names:
                if other != name:
                    peer.see(other, at=0.0)
            for other in names:
                if other not in side:
                    peer.see(other, Liveness.FAILED)
            peer.train(ROUNDS)
    returns = [(one, other) for one in names for other in names if not any({one, other} <= set(s) for s in sides)]
    random.shuffle(returns)
    model = {name: number for number, side in enumerate(sides) for name in side}
    for turn in range(400):
        for one, other in returns[2 * turn : 2 * turn + 2]:
            peers[one].see(other)
        for name, peer in peers.items():
            peer.now = 1000.0 + turn * PERIOD
            peer.course.handle_timer(peer.now)
            peer.step()
            if peer.course.resyncing:
                if peer.outputs.jobs:
                    peer.outputs.jobs.clear()
                    peer.keep()
                source = peer.joiners[-1].source
                if source is not None and not peers[source].course.resyncing and random.random() < 0.5:
                    model[name] = model[source]
                    peer.fetched()
        words = [(peers[e.to], name, e.message) for name, p in peers.items() for e in p.outputs.messages]
        for peer in peers.values():
            peer.outputs.messages.clear()
        random.shuffle(words)
        for peer, source, word in words:
            if random.random() < 0.7:
                peer.course.receive(word, [], source, 0, peer.now)
                peer.step()
    assert not any(peer.apart or peer.course.resyncing for peer in peers.values())
    assert set(model.values()) == {0}
    assert len({peer.line for peer in peers.values()}) == 1


def lagging():
    """The peer was cut off for many rounds and saw no member fail. A and C vouch for the network."""
    b = Side(side=(A, C, D))
    b.progress.merge([Progress(peer, 10 * LONG, 1, 1, 1) for peer in (A, C, D)])
    b.view.buried = 1
    b.step()
    for peer in (A, C):
        b.hear(peer, apart=False)
    return b


def test_member_that_turns_out_to_be_of_another_side_is_no_voucher():
    b = lagging()
    b.hear(C, Line(1, 3, 1, 1, C))
    b.wait(ASKING * PERIOD)
    assert b.apart == {C} and not b.of(ResyncBegan)


def test_model_of_a_member_that_turns_out_to_be_apart_brings_this_peer_to_its_side():
    b = lagging()
    b.wait(LISTEN * PERIOD)
    assert [event.reason for event in b.of(ResyncBegan)] == ["lag"]
    b.keep()
    assert b.course._replacement.source == A
    theirs = Line(1, 3, 1, 1, A)
    b.hear(A, theirs)
    b.fetched()
    assert b.line == theirs and b.apart == {C, D}


def test_greatest_lag_is_no_voucher():
    b = Side()
    b.hear(A, apart=False, lag=BEHIND)
    b.hear(C, apart=False, lag=0)
    assert not b.course.resyncing


class Joiner(Fetching):
    """Its candidates show no newer model, and jobs of chunks that came before are under way."""

    def outdone(self, candidates):
        return True


def test_outdone_replacement_waits_for_the_jobs_of_its_joiner_without_a_timer():
    """Simulator seed 1096, with four jobs of a pass at once: the peer named the same past time for ever."""
    b = Side(waits=True)
    b.train(ROUNDS)
    b.step()
    b.keep()
    joiner = b.course._replacement.joiner = Joiner()
    joiner.busy = True
    b.step()
    assert b.now < b.course.timer()
    joiner.busy = False
    assert b.course.timer() == b.course._replacement.over_at <= b.now


def test_peer_that_asks_whether_it_lags_follows_a_greater_side_at_once():
    b = Side()
    b.course._fire(Event.SUSPECTED, b.now)
    b.divide(D, E)
    for peer in (D, E):
        b.hear(peer, GREATER)
    b.wait(HEARD + PERIOD)
    assert b.course.state is State.REPLACING and b.course.resyncing is Reason.APART


def test_peer_without_company_follows_one_that_came_back_soon_and_meets_it_anew():
    b = Side(side=())
    b.divide(D)
    b.wait(5 * HEARD)
    b.see(D, Liveness.FAILED)
    b.wait(PERIOD)
    b.see(D)
    assert b.course._meeting.gap is Gap.TOGETHER and b.apart == {D}
    theirs = Line(1, 1, 999, 1, D)
    b.hear(D, theirs)
    b.wait(PERIOD)
    b.keep()
    b.fetched()
    assert b.line == theirs and not b.apart and b.course._meeting.gap is not Gap.TOGETHER


def test_peer_left_alone_with_one_that_came_back_soon_counts_itself_only():
    """The other member is still held apart, but no new meeting has begun."""
    b = Side()
    b.divide(D)
    b.wait(5 * HEARD)
    b.see(D, Liveness.FAILED)
    b.wait(PERIOD)
    for peer in (A, C):
        b.see(peer, Liveness.FAILED)
    assert b.course._meeting.gap is Gap.TOGETHER and b.line.members == 3
    b.see(D)
    b.wait(PERIOD)
    assert b.course._meeting.gap is Gap.TOGETHER and b.apart == {D} and b.line.members == 1


PAGE = Path(__file__).resolve().parents[3] / "docs/design/protocol.md"


def test_page_shows_the_tables():
    text = PAGE.read_text().split("<!-- course -->")[1].split("<!-- /course -->")[0]
    assert text.strip() == f"```mermaid\n{course_diagram()}\n```"


@pytest.mark.parametrize(("table", "start"), [(GAP, Gap.TOGETHER), (COURSE, State.EMPTY)])
def test_each_state_can_be_reached_and_left(table, start):
    reached = {start}
    while more := {after for (state, _), (after, _) in table.items() if state in reached} - reached:
        reached |= more
    assert reached == set(type(start))
    assert {state for (state, _), (after, _) in table.items() if state is not after} == set(type(start))


def test_each_event_and_action_is_in_a_table():
    tables = [*GAP.items(), *COURSE.items()]
    assert {event for (_, event), _ in tables} == set(Event)
    assert {action for _, (_, action) in tables} - {None} == set(Action)


def test_transition_that_the_table_lacks_is_a_fault():
    assert next_state(COURSE, State.CURRENT, Event.SUSPECTED) == (State.DOUBTING, Action.ASK)
    with pytest.raises(LocalProtocolError, match="does not expect"):
        next_state(COURSE, State.CURRENT, Event.VOUCHED)
