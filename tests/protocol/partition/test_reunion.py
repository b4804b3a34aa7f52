"""Which side follows when two meet again, as tables: what a peer hears and sees, and what it concludes."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest
from msgspec.structs import replace

from gossipdp.protocol import jobs
from gossipdp.protocol.events import Notice, ResyncBegan, ResyncEnded
from gossipdp.protocol.membership.membership import LOCAL
from gossipdp.protocol.membership.progress import Own, ProgressBoard
from gossipdp.protocol.membership.view import MAX_MEMBERS
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.partition.follower import WANTED
from gossipdp.protocol.partition.lag import ASKING, BEHIND, LISTEN
from gossipdp.protocol.partition.lines import LAST, NO_LINE, strength
from gossipdp.protocol.partition.reasons import Reason
from gossipdp.protocol.partition.reunion import NEVER, Reunion
from gossipdp.protocol.partition.sides import FREEZE, MAX_LIVES
from gossipdp.protocol.partition.verdict import HEARING
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import Line, Lineage, Member, Progress, State, StateProbe, StateRequest

EVERY, ROUNDS = 5, 10
PERIOD = LOCAL.join_interval
HEARD, FROZEN = HEARING * PERIOD, FREEZE * PERIOD
LONG = EVERY * ROUNDS
A, B, C, D, E, F = (bytes([letter]) * 32 for letter in b"abcdef")
GREATER = Line(1, 5, 300, 30, D)


def record(peer, state=State.ALIVE, incarnation=1, *, outbound=False):
    address = "" if outbound else f"10.0.0.{peer[0]}:1"
    return Member(peer, chr(peer[0]), address, incarnation, 0, state)


class View:
    """Membership's view, set by the test."""

    def __init__(self, me):
        self.config, self.me, self.buried = LOCAL, record(me), 0
        self.members = {me: self.me}

    def alive(self):
        others = [member for member in self.members.values() if member.id != self.me.id]
        return sorted((m for m in others if m.state in (State.ALIVE, State.SUSPECT)), key=lambda m: m.id)

    def reaches(self, peer):
        return True


class Fetching:
    """Stands in for a Joiner."""

    def __init__(self):
        self.source, self.manifest, self.done, self.busy = None, None, False, False
        self.sought = []

    def outdone(self, candidates):
        return False

    def seek(self, candidates, now):
        self.sought = list(candidates)
        if candidates and self.source is None:
            self.source = candidates[0]

    def gone(self, peer, now):
        if peer == self.source:
            self.source = None

    def adopted(self, job, result, now):
        pass

    def timer(self):
        return None

    def handle_timer(self, now):
        pass


class Manifest:
    clock, rounds = 300, 30


class Side:
    """Peer B has the model, and A and C are of its side. The test speaks for all others."""

    def __init__(self, side=(A, C), me=B, every=EVERY):
        self.view, self.outputs, self.progress = View(me), Outputs(), ProgressBoard(me)
        self.now, self.own, self.held, self.quiet = 1000.0, Own(100, 20, 0, 0.0), [], True
        self.joiners, self.done, self.numbers = [], [], 0
        self.reunion = Reunion(
            self.view, self.progress, self.joiner, random=Random(3), outputs=self.outputs, apart_rounds=ROUNDS,
            every=every, me=lambda: self.own, hold=self.hold, done=lambda *what: self.done.append(what),
        )  # fmt: skip
        self.astray = ()
        self.reunion.ready(b"", [], 0.0)
        for peer in side:
            self.see(peer, at=0.0)

    def joiner(self, newer_than):
        self.joiners.append(Fetching())
        return self.joiners[-1]

    def hold(self, held, now):
        self.held.append(held)
        return self.quiet

    def see(self, peer, state=State.ALIVE, incarnation=1, at=None):
        member = self.view.members[peer] = record(peer, state, incarnation)
        self.reunion.member_changed(member, self.now if at is None else at)
        self.step()

    def step(self):
        self.reunion.step(self.now, self.astray)

    def train(self, rounds):
        self.own = self.own._replace(clock=self.own.clock + EVERY * rounds, rounds=self.own.rounds + rounds)

    def divide(self, *others, rounds=ROUNDS):
        """The others are lost, this peer trains `rounds`, and they come back."""
        for peer in others:
            self.see(peer, at=0.0)
        for peer in others:
            self.see(peer, State.FAILED)
        self.train(rounds)
        for peer in others:
            member = self.view.members[peer] = record(peer)
            self.reunion.member_changed(member, self.now)
        self.step()

    def hear(self, peer, line=NO_LINE, *, apart=True, reply=False, lag=0, incarnation=1, number=None, life=1):
        self.numbers += 1
        word = Lineage(incarnation, self.numbers if number is None else number, life, apart, reply, lag, line)
        self.reunion.receive(word, peer, self.now)
        self.step()

    def wait(self, seconds):
        end = self.now + seconds
        while self.now < end:
            self.now += PERIOD
            self.reunion.handle_timer(self.now)
            self.step()

    def keep(self):
        """The driver has saved the checkpoint."""
        self.reunion.follower.kept()
        self.step()

    def fetched(self):
        joiner = self.joiners[-1]
        joiner.manifest, joiner.done = Manifest, True
        self.step()

    def of(self, kind):
        return [event for event in self.outputs.events if isinstance(event, kind)]

    def said(self, to):
        return [e.message for e in self.outputs.messages if e.to == to and isinstance(e.message, Lineage)]

    @property
    def apart(self):
        return set(self.reunion.apart)

    @property
    def line(self):
        return self.reunion.line


# -- the order of lines ----------------------------------------------------------------------------------------


def test_more_members_then_clock_then_rounds_then_the_lower_id():
    lines = [Line(1, 3, 9, 9, A), Line(1, 4, 1, 9, B), Line(1, 4, 2, 1, B), Line(1, 4, 2, 2, C), Line(1, 4, 2, 2, A)]
    assert sorted(lines, key=strength) == lines
    for one, other in permutations(lines, 2):
        assert (strength(one) > strength(other)) != (strength(other) > strength(one))


def test_line_named_by_hearsay_is_less_than_a_side_of_one():
    assert strength(Line(9, 0, 999, 99, A)) < strength(Line(1, 1, 0, 0, B)) and strength(NO_LINE) < strength(GREATER)


# -- apart or not ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rounds", "apart"), [(0, False), (ROUNDS - 1, False), (ROUNDS, True), (1000, True)])
def test_lost_member_is_apart_after_ten_own_rounds(rounds, apart):
    b = Side()
    b.divide(D, rounds=rounds)
    assert b.apart == ({D} if apart else set()) and (b.line != NO_LINE) == apart


@pytest.mark.parametrize(("ahead", "apart"), [(LONG - 1, False), (LONG, True)])
def test_member_known_only_as_failed_is_apart_by_how_far_it_has_come(ahead, apart):
    """So a joiner belongs to the side that it joined."""
    b = Side()
    b.progress.merge([Progress(D, 90, 90, 90, 9)])
    b.see(D, State.FAILED)
    b.progress.merge([Progress(D, 90 + ahead, 90 + ahead, 90, 9)])
    b.see(D)
    assert b.apart == ({D} if apart else set())


def test_member_that_counts_on_from_another_s_clock_is_not_apart_for_that():
    b = Side()
    b.progress.merge([Progress(D, 90, 90, 90, 9)])
    b.see(D, State.FAILED)
    b.progress.merge([Progress(D, 9000, 95, 95, 10)])
    b.see(D)
    assert not b.apart


@pytest.mark.parametrize(("rounds", "apart"), [(ROUNDS - 1, False), (ROUNDS, True)])
def test_member_remembered_and_missing_at_a_restart_is_apart(rounds, apart):
    b = Side(side=())
    b.reunion.ready(b"", [record(D)], 0.0)
    b.train(rounds)
    b.see(D)
    assert b.apart == ({D} if apart else set())


def test_later_life_of_a_lost_member_is_not_apart_by_itself():
    b = Side()
    b.divide(rounds=0)
    b.see(D)
    b.see(D, State.FAILED)
    b.train(ROUNDS)
    b.see(D, incarnation=2)
    assert not b.apart


@pytest.mark.parametrize(("rounds", "members"), [(ROUNDS - 1, 0), (ROUNDS, 4)])
def test_later_life_that_says_it_is_apart_is_believed_by_a_side_that_missed_it_for_as_long(rounds, members):
    """A peer that was stopped hears from all others that it is apart, and its line counts no members."""
    b = Side(side=(A, C, E))
    b.see(D, at=0.0)
    b.see(D, State.FAILED)
    b.train(rounds)
    b.see(D, incarnation=2)
    b.hear(D, Line(1, 1, 300, 30, D), apart=True, incarnation=2)
    assert b.apart == {D} and b.line.members == members
    b.hear(E, Line(1, 1, 300, 30, D), apart=True)
    b.wait(HEARD + PERIOD)
    assert (b.reunion.reason is Reason.APART) is (members == 0)


def test_later_life_that_has_its_model_from_this_side_is_as_any_other():
    b = Side()
    b.see(D, at=0.0)
    b.see(D, State.FAILED)
    b.train(ROUNDS)
    b.see(D, incarnation=2)
    b.hear(D, NO_LINE, apart=False, incarnation=2)
    b.hear(D, GREATER, apart=True, incarnation=2)
    assert b.apart == {D} and b.line.members == 0


def test_later_life_that_comes_while_there_are_two_sides_is_kept_out_until_it_names_its_line():
    b = Side()
    b.divide(D)
    b.see(E, incarnation=2)
    assert b.apart == {D, E}
    b.hear(E, b.line, apart=False, incarnation=2)
    assert b.apart == {D}


def test_member_that_says_it_is_apart_is_held_apart_though_this_peer_noticed_nothing():
    b = Side()
    b.see(D, at=0.0)
    b.hear(D, GREATER, apart=True)
    assert b.apart == {D} and b.line.members == 0


def test_member_that_left_is_apart_no_more():
    b = Side()
    b.divide(D)
    b.see(D, State.LEFT)
    assert not b.apart


# -- the line of this side -------------------------------------------------------------------------------------


def test_line_counts_this_side_as_it_was_before_the_reunion():
    b = Side()
    b.divide(D, E, F)
    assert b.line == Line(1, 3, 150, 30, B)


def test_line_said_within_the_side_is_taken_over_if_it_is_greater():
    b = Side()
    b.divide(D)
    greater, smaller = replace(b.line, members=4, maker=A), replace(b.line, members=2, maker=C)
    b.hear(A, greater, apart=False)
    b.hear(C, smaller, apart=False)
    assert b.line == greater and b.apart == {D}


def test_line_of_a_member_that_has_just_come_is_not_of_this_side():
    b = Side()
    b.divide(D)
    mine = b.line
    b.see(E, State.FAILED)
    b.see(E)
    b.hear(E, replace(GREATER, maker=E), apart=False)
    assert b.line == mine


def test_line_of_a_member_still_held_dead_is_not_of_this_side():
    b = Side(side=(A, C, E))
    b.divide(D)
    mine = b.line
    b.see(E, State.FAILED)
    b.hear(E, replace(GREATER, maker=E), apart=False)
    assert b.line == mine


def test_line_of_this_side_holds_though_its_maker_has_died():
    b = Side(side=(A, C, E))
    b.divide(D)
    b.see(E, State.FAILED)
    greater = replace(b.line, members=5, maker=E)
    b.hear(A, greater, apart=False)
    assert b.line == greater and b.apart == {D}


def test_member_that_tells_a_line_of_the_others_has_gone_over():
    b = Side()
    b.divide(D)
    b.hear(A, replace(GREATER, maker=D), apart=False)
    assert b.apart == {A, D}


def test_generation_that_cannot_be_counted_on_from_does_not_make_this_peer_unreadable():
    b = Side()
    b.divide(D)
    b.hear(A, replace(b.line, members=4, generation=LAST, maker=A), apart=False)
    b.hear(D, b.line, apart=False)
    b.wait(FROZEN + PERIOD)
    b.see(C, State.FAILED)
    b.divide(D)
    assert b.line.generation == LAST and b.line.maker == B
    b.see(A, State.FAILED)
    b.wait(HEARD + PERIOD)
    b.now += 1e6
    b.step()
    assert b.line.members == 1
    b.reunion.tell(D)
    for envelope in b.outputs.messages:
        wire.decode(envelope.frames)


@pytest.mark.parametrize("wait", [FROZEN + PERIOD])
def test_next_reunion_has_a_line_of_its_own(wait):
    b = Side()
    b.divide(D)
    b.hear(D, b.line, apart=False)
    assert not b.apart
    b.wait(wait)
    b.see(C, State.FAILED)
    b.divide(D)
    assert b.line == Line(2, 2, 200, 40, B)


def test_message_overtaken_by_a_later_one_is_ignored():
    b = Side()
    b.divide(D)
    b.hear(D, b.line, apart=False, number=7)
    b.hear(D, GREATER, apart=True, number=6)
    assert not b.apart


def test_message_of_an_earlier_life_is_ignored():
    b = Side()
    b.see(D, incarnation=3, at=0.0)
    b.hear(D, GREATER, apart=True, incarnation=2)
    assert not b.apart


# -- the verdict -----------------------------------------------------------------------------------------------

MINE = Line(1, 3, 150, 30, B)
VERDICTS = [
    (Line(1, 4, 1, 1, D), True),
    (Line(1, 2, 999, 99, D), False),
    (Line(1, 3, 151, 1, D), True),
    (Line(1, 3, 149, 99, D), False),
    (Line(1, 3, 150, 31, D), True),
    (Line(1, 3, 150, 30, A[:-1] + b"\x00"), True),
    (Line(1, 3, 150, 30, D), False),
    (Line(5, 0, 999, 99, D), False),
    (NO_LINE, False),
]


@pytest.mark.parametrize(("theirs", "follows"), VERDICTS)
def test_side_with_the_smaller_line_follows_once_it_has_heard(theirs, follows):
    b = Side()
    b.divide(D, E)
    assert b.line == MINE
    b.hear(D, theirs)
    b.hear(E, theirs)
    b.wait(HEARD - 2 * PERIOD)
    assert not b.reunion.reason
    b.wait(4 * PERIOD)
    assert b.reunion.reason == (Reason.APART if follows else None)
    assert [event.reason for event in b.of(ResyncBegan)] == ["apart"] * follows
    assert [event.code for event in b.of(Notice)] == ["GD-607"]


def test_line_said_before_its_sender_noticed_counts_for_nothing():
    """It may be of an earlier reunion, when both peers were of one side."""
    b = Side()
    b.divide(D, E)
    b.hear(D, GREATER, apart=False)
    b.hear(E, GREATER, apart=True)
    b.wait(2 * HEARD)
    assert not b.reunion.reason
    b.hear(D, GREATER, apart=True)
    assert b.reunion.reason is Reason.APART


def test_one_peer_that_claims_to_be_many_is_not_followed():
    b = Side()
    b.see(D, at=0.0)
    b.hear(D, replace(GREATER, members=1_000_000), apart=True)
    b.wait(10 * HEARD)
    assert b.apart == {D} and not b.reunion.reason
    b.see(E, incarnation=2)
    assert b.apart == {D}, "and it holds no other member apart"


def test_one_peer_that_says_it_is_apart_is_not_followed_by_a_peer_with_company():
    """Otherwise every other peer would follow it: its word alone holds each of them apart."""
    b = Side()
    b.see(D, at=0.0)
    b.hear(D, replace(GREATER, members=1), apart=True)
    b.wait(10 * HEARD)
    assert b.apart == {D} and not b.reunion.reason
    assert b.line.members == 3, "it is a side as any other"


def test_side_that_has_grown_around_a_lone_peer_counts_all_its_members():
    """Otherwise neither side would follow: one voice proves nothing to a peer with company."""
    b = Side(side=())
    b.divide(D)
    b.see(A)
    b.hear(A, b.line, apart=False)
    b.hear(D, Line(1, 1, 999, 1, D))
    assert b.line.members == 1 and b.apart == {D}
    b.wait(5 * HEARD)
    assert b.line.members == 2 and not b.reunion.reason


def test_peer_without_company_follows_one_that_says_it_was_stopped_for_long():
    b = Side(side=())
    b.see(D, at=0.0)
    b.hear(D, replace(GREATER, members=1), apart=True)
    b.wait(2 * HEARD)
    assert b.reunion.reason is Reason.APART


def test_where_there_are_no_sides_no_member_is_apart_by_its_own_word():
    b = Side(every=NEVER)
    for peer in (A, D, E):
        b.see(peer, at=0.0)
        b.hear(peer, GREATER, apart=True)
    b.wait(10 * HEARD)
    assert not b.apart and not b.reunion.reason and b.line == NO_LINE


REMNANTS = [
    ((A, C), (D,), Line(1, 5, 1, 1, D), False),
    ((A, C), (D, E), Line(1, 5, 1, 1, D), True),
    ((A, C), (D,), Line(1, 1, 1, 1, D), False),
    ((), (D,), Line(1, 1, 1, 1, D), False),
    ((), (D,), Line(1, 1, 999, 1, D), True),
    ((), (D, E), Line(1, 2, 1, 1, D), True),
    ((), (D,), Line(1, 4, 1, 1, D), False),
]


@pytest.mark.parametrize(("left", "there", "theirs", "follows"), REMNANTS)
def test_what_is_left_of_a_side_of_three_meets_what_is_left_of_another(left, there, theirs, follows):
    """One voice proves no side of several. So a peer left alone soon counts itself only."""
    b = Side()
    b.divide(D, E)
    assert b.line.members == 3
    for peer in {A, C, D, E} - {*left, *there}:
        b.see(peer, State.FAILED)
    for peer in there:
        b.hear(peer, theirs)
    b.wait(5 * HEARD)
    assert b.line.members == (3 if left else 1)
    assert (b.reunion.reason is Reason.APART) == follows


def test_member_that_gives_up_its_model_is_not_followed_until_it_has_the_other_one():
    b = Side()
    b.divide(D, E)
    for peer in (D, E):
        b.hear(peer, GREATER, lag=BEHIND)
    b.wait(4 * HEARD)
    assert not b.reunion.reason
    b.hear(D, GREATER)
    assert not b.reunion.reason, "one voice"
    b.hear(E, GREATER)
    assert b.reunion.reason is Reason.APART


def test_peer_left_alone_keeps_its_line_while_others_follow_it():
    b = Side()
    b.divide(D, E)
    for peer in (A, C):
        b.see(peer, State.FAILED)
    b.hear(D, Line(1, 2, 1, 1, D), lag=BEHIND)
    b.hear(E, Line(1, 2, 1, 1, D), lag=BEHIND)
    b.wait(4 * HEARD)
    assert b.line.members == 3 and not b.reunion.reason


def test_peer_that_cannot_hear_the_others_of_its_side_is_left_alone_too():
    """All three are outbound-only, so no other member of the side can ever hold its line."""
    b = Side()
    b.divide(D, E)
    assert b.line.members == 3
    for peer in (A, C):
        b.view.members[peer] = record(peer, outbound=True)
    b.view.me = record(B, outbound=True)
    theirs = Line(1, 2, 1, 1, D)
    for peer in (D, E):
        b.hear(peer, theirs)
    b.wait(5 * HEARD)
    assert b.line.members == 1 and b.reunion.reason is Reason.APART


def test_the_only_member_that_can_be_dialled_is_voice_enough_for_a_peer_behind_a_nat():
    b = Side()
    b.divide(D, E)
    for peer in (A, C, E):
        b.view.members[peer] = record(peer, outbound=True)
    b.hear(D, GREATER)
    b.wait(2 * HEARD)
    assert not b.reunion.reason, "one voice of several"
    b.view.me = record(B, outbound=True)
    b.hear(D, GREATER)
    b.wait(2 * HEARD)
    assert b.reunion.reason is Reason.APART


def test_both_sides_are_told_and_asked_again_until_all_is_one():
    b = Side()
    b.divide(D)
    b.outputs.messages.clear()
    b.wait(8 * PERIOD)
    assert len(b.said(D)) == 8 and all(word.apart and word.reply for word in b.said(D))
    assert b.said(A) and not any(word.apart for word in b.said(A))
    b.hear(D, b.line, apart=False)
    b.wait(2 * PERIOD)
    b.outputs.messages.clear()
    b.wait(20 * PERIOD)
    assert not b.outputs.messages and b.reunion.timer() is None


def test_two_outbound_only_peers_that_are_apart_do_not_wait_for_each_other():
    """They cannot reach each other, and exchange nothing anyway."""
    b = Side()
    b.divide(D)
    assert b.reunion.present() == [D]
    b.view.me = record(B, outbound=True)
    assert b.reunion.present() == [D]
    b.view.members[D] = record(D, outbound=True)
    assert not b.reunion.present() and b.apart == {D}


def test_member_held_apart_that_fails_and_comes_back_is_asked_again():
    """It may have changed sides meanwhile, and its message may be lost."""
    b = Side()
    b.divide(D)
    b.see(D, State.FAILED)
    b.wait(5.0)
    b.outputs.messages.clear()
    b.see(D)
    b.wait(PERIOD)
    assert b.apart == {D} and b.said(D)


# -- following -------------------------------------------------------------------------------------------------


def loser(*others):
    b = Side()
    b.divide(D, E, *others)
    for peer in (D, E):
        b.hear(peer, GREATER)
    b.wait(HEARD + PERIOD)
    return b


def test_loser_saves_first_and_fetches_only_when_no_exchange_is_under_way():
    b = loser()
    assert list(b.outputs.jobs) == [jobs.Keep("apart")] and b.held[-1]
    assert not b.joiners[-1].sought
    b.quiet = False
    b.keep()
    assert not b.joiners[-1].sought
    b.quiet = True
    b.step()
    assert b.joiners[-1].sought == [D, E]


def test_apart_told_to_an_earlier_life_holds_no_member_apart():
    b = Side(side=(A, C, D))
    b.hear(D, GREATER, life=0)
    assert not b.reunion.apart and b.reunion.line == NO_LINE
    b.hear(D, GREATER, life=1)
    assert list(b.reunion.apart) == [D] and b.reunion.line != NO_LINE


def test_loser_gives_up_winners_out_of_reach_once_and_follows_them_when_it_reaches_them():
    """Otherwise it would begin again and again, with a checkpoint each time.

    It gives up sooner if a peer asks for its model.
    """
    b = loser()
    b.view.reaches = lambda peer: peer not in (D, E)
    b.keep()
    b.reunion.asked(F, b.now, trusted=True)
    b.wait((WANTED + 2) * PERIOD)
    assert [event.complete for event in b.of(ResyncEnded)] == [False]
    b.wait(60 * PERIOD)
    assert len(b.of(ResyncBegan)) == 1
    b.view.reaches = lambda peer: True
    b.wait(PERIOD)
    assert len(b.of(ResyncBegan)) == 2


def test_peer_that_has_diverged_does_not_give_up_sooner_when_asked_for_its_model():
    b = Side()
    b.astray = (A,)
    b.view.reaches = lambda peer: peer != A
    b.step()
    b.keep()
    b.reunion.asked(F, b.now, trusted=True)
    b.wait(2 * WANTED * PERIOD)
    assert b.reunion.reason is Reason.DIVERGED and not b.of(ResyncEnded)


def test_loser_takes_the_line_over_with_the_model_and_its_old_side_is_apart():
    b = loser()
    b.keep()
    b.fetched()
    assert b.line == GREATER and b.apart == {A, C} and not b.reunion.reason
    assert [what[:2] for what in b.done] == [(300, 30)] and b.held[-1] is False
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
    b.see(D, State.FAILED)
    assert b.joiners[-1].sought == [E] and b.reunion.reason is Reason.APART


def test_loser_without_any_source_left_goes_on_with_its_own_model():
    b = loser()
    b.keep()
    for peer in (D, E):
        b.see(peer, State.FAILED)
    b.wait(60.0)
    assert not b.reunion.reason and b.held[-1] is False and not b.done
    assert [event.complete for event in b.of(ResyncEnded)] == [False]


def test_loser_whose_own_model_is_wanted_does_not_wait_long_for_sources_that_are_gone():
    """The other model's holder came back without it and asks for this one. There may be no other model any more."""
    b = loser()
    b.keep()
    b.reunion.asked(F, b.now, trusted=True)
    b.wait(2 * WANTED * PERIOD)
    assert b.reunion.reason is Reason.APART  # there are sources, and they serve joiners too
    for peer in (D, E):
        b.see(peer, State.FAILED)
    b.see(D, incarnation=2)
    b.reunion.asked(F, b.now, trusted=True)
    b.wait((WANTED + 2) * PERIOD)
    assert [event.complete for event in b.of(ResyncEnded)] == [False] and b.reunion.gives(StateRequest(1), D)


@pytest.mark.parametrize("complete", [True, False])
def test_fetched_chunks_stay_if_all_are_here_and_are_taken_back_if_not(complete):
    b = loser()
    b.keep()
    for chunk, good in ((2, True), (0, True), (1, False)):
        b.reunion.follower.resynced(jobs.Resync(chunk, b"", b""), jobs.Checked(good), b.now)
    before = len(b.outputs.jobs)
    if complete:
        b.fetched()
    else:
        for peer in (D, E):
            b.see(peer, State.FAILED)
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
    assert not b.reunion.gives(StateRequest(1), A)
    b.keep()
    b.fetched()
    assert b.reunion.gives(StateRequest(1), A)


def test_peer_that_suspects_it_is_long_out_of_date_gives_no_state():
    b = Side()
    b.progress.merge([Progress(peer, 10 * LONG, 1, 1, 1) for peer in (A, C)])
    b.view.buried = 1
    b.step()
    assert not b.reunion.gives(StateRequest(1), D)
    b.wait(2 * ASKING * PERIOD)
    assert b.reunion.gives(StateRequest(1), D), "there was no network to follow"


def test_only_followers_of_this_side_get_samples_while_there_are_two_sides():
    """A joiner of the other side would find its own side's model implausible."""
    b = Side()
    b.divide(D)
    assert not b.reunion.gives(StateProbe(1, (0,)), F) and b.reunion.gives(StateRequest(1), F)
    b.hear(D, Line(1, 1, 1, 1, D))
    assert b.reunion.gives(StateProbe(1, (0,)), D)


def test_joiner_holds_the_line_that_its_source_has_told():
    b = Side(side=())
    b.reunion = Reunion(
        b.view, b.progress, b.joiner, random=Random(3), outputs=b.outputs, apart_rounds=ROUNDS, every=EVERY,
        me=lambda: b.own, hold=b.hold, done=lambda *what: None,
    )  # fmt: skip
    b.see(D, at=0.0)
    b.hear(D, GREATER, apart=True)
    assert not b.apart and b.line == NO_LINE
    b.reunion.ready(D, [], b.now)
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
                    peer.see(other, State.FAILED)
            peer.train(ROUNDS)
    returns = [(one, other) for one in names for other in names if not any({one, other} <= set(s) for s in sides)]
    random.shuffle(returns)
    model = {name: number for number, side in enumerate(sides) for name in side}
    for turn in range(400):
        for one, other in returns[2 * turn : 2 * turn + 2]:
            peers[one].see(other)
        for name, peer in peers.items():
            peer.now = 1000.0 + turn * PERIOD
            peer.reunion.handle_timer(peer.now)
            peer.step()
            if peer.reunion.reason:
                if peer.outputs.jobs:
                    peer.outputs.jobs.clear()
                    peer.keep()
                source = peer.joiners[-1].source
                if source is not None and not peers[source].reunion.reason and random.random() < 0.5:
                    model[name] = model[source]
                    peer.fetched()
        words = [(peers[e.to], name, e.message) for name, p in peers.items() for e in p.outputs.messages]
        for peer in peers.values():
            peer.outputs.messages.clear()
        random.shuffle(words)
        for peer, source, word in words:
            if random.random() < 0.7:
                peer.reunion.receive(word, source, peer.now)
                peer.step()
    assert not any(peer.apart or peer.reunion.reason for peer in peers.values())
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
    assert b.reunion.follower.source == A
    theirs = Line(1, 3, 1, 1, A)
    b.hear(A, theirs)
    b.fetched()
    assert b.line == theirs and b.apart == {C, D}


def test_greatest_lag_is_no_voucher():
    b = Side()
    b.hear(A, apart=False, lag=BEHIND)
    b.hear(C, apart=False, lag=0)
    assert not b.reunion.reason


def test_tables_are_not_swept_at_each_message_of_a_network_at_the_limit_of_membership():
    """A sweep that forgets no member is due again at once. With ten thousand members every event would pay for one."""
    assert MAX_LIVES >= 2 * MAX_MEMBERS
