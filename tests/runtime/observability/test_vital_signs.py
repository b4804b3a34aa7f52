"""What the verdict depends on, from the events of a peer."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gossipdp.protocol import events
from gossipdp.protocol.causes import Objection, Outcome, Unused
from gossipdp.protocol.course.table import Reason
from gossipdp.protocol.events import Notice
from gossipdp.protocol.view import View
from gossipdp.protocol.wire.messages import State
from gossipdp.runtime.network.dial_causes import Cause
from gossipdp.runtime.observability.health import Signs, judge
from gossipdp.runtime.observability.unanswered import KEPT, Shown, Unanswered, without_passed
from gossipdp.runtime.observability.vital_signs import STARTS, VitalSigns
from peers.supervisor import ATTACH_WITHIN
from tests.protocol.admission.deciding import ban, register
from tests.runtime.observability.metric_samples import PARTNER, exchange, member, number, outer_step


class Watched:
    """A peer whose training rounds take 10 s, and one other member, which trains."""

    def __init__(self) -> None:
        self.partner = member()
        self.others, self.trainers = [self.partner], [PARTNER]
        self.admission = register(number(1))
        config: Any = SimpleNamespace(transfer=SimpleNamespace(silence=20.0), sync=False, resume_after=30.0)
        self.runaway = SimpleNamespace(active=False)
        pacing = SimpleNamespace(
            usual_round=10.0, ratio=1.5, ratio_of=lambda distance: distance / 0.01, runaway=self.runaway
        )
        averaging = SimpleNamespace(stopped=False)
        self.replica: Any = SimpleNamespace(
            ready=True, founds=False, resyncing=None, resumes=None, pacing=pacing, averaging=averaging
        )
        self.membership: Any = SimpleNamespace(
            alive=lambda: self.others,
            training=lambda: self.trainers,
            members={PARTNER: self.partner},
            dead_for=lambda peer, now: 7.0,
            linked=lambda peer: True,
            me=SimpleNamespace(addresses=("10.0.0.9:4710",), only_carries=False),
        )
        nothing: Any = None
        self.view = View(config, self.admission, nothing, self.membership, nothing, self.replica)
        self.unanswered = Unanswered()
        self.signs = VitalSigns(self.view, self.unanswered, 0.0)

    def observe(self, event: events.Event, now: float) -> None:
        self.signs.observe(event, now)

    def at(self, now: float, *, training: bool = True) -> Signs:
        return self.signs.collect(now, training=training, partner=PARTNER, transfer="", saving=False)


@pytest.fixture
def watched() -> Watched:
    watched = Watched()
    watched.observe(events.SessionOpened(1), 100.0)
    return watched


def test_quiet_counts_from_the_session_and_from_each_exchange(watched: Watched) -> None:
    assert watched.at(150.0).quiet == 50.0 and watched.at(150.0).exchanged == math.inf
    watched.observe(exchange(), 160.0)
    watched.observe(exchange(chunks=0, result=Outcome.LOST), 170.0)
    watched.observe(events.OfferRefused(PARTNER, Objection.BUSY), 171.0)
    signs = watched.at(190.0)
    assert (signs.quiet, signs.exchanged, signs.partner) == (30.0, 30.0, "host")
    assert signs.fruitless == (("lost", 1), ("busy", 1)) and signs.patience == 4 * 10.0 + 20.0
    watched.observe(exchange(), 191.0)
    assert watched.at(191.0).fruitless == ()


def test_exchanges_that_show_no_distance_are_counted_until_one_shows_it(watched: Watched) -> None:
    for now in (150.0, 151.0, 152.0):
        watched.observe(exchange(distance=math.nan), now)
    signs = watched.at(153.0)
    assert signs.unseen == 3 and math.isnan(signs.ratio) and judge(signs).state == "degraded"
    watched.observe(exchange(distance=0.1), 154.0)
    assert watched.at(155.0).unseen == 0 and judge(watched.at(155.0)).state == "healthy"


def test_second_training_process_is_told_until_it_stops_trying_or_the_first_is_gone(watched: Watched) -> None:
    watched.signs.turned_away(34, 12, 200.0)
    assert watched.at(289.0).second == (34, 12) and watched.at(290.0).second == (0, 0)
    watched.signs.turned_away(35, 12, 300.0)
    watched.signs.detached(301.0)
    assert watched.at(301.0).second == (0, 0)


@pytest.mark.parametrize("why", ["alone", "no one trains", "no training here", "fetching"])
def test_quiet_does_not_count_while_no_exchange_is_possible(watched: Watched, why: str) -> None:
    if why == "alone":
        watched.others = []
    elif why == "no one trains":
        watched.trainers = []
    elif why == "fetching":
        watched.replica.resyncing = Reason.LAG
    assert watched.at(500.0, training=why != "no training here").quiet == 0.0
    watched.others, watched.trainers, watched.replica.resyncing = [watched.partner], [PARTNER], None
    assert watched.at(530.0).quiet == 30.0


def test_round_and_snapshots_of_training(watched: Watched) -> None:
    watched.observe(outer_step(1), 130.0)
    for refused in (Unused.NAN, Unused.SESSION, Unused.NAN):
        watched.observe(events.SnapshotTaken(1, refused), 140.0)
    assert (watched.at(150.0).still, watched.at(150.0).refused) == (20.0, ("nan", 2))
    watched.observe(events.SnapshotTaken(2), 150.0)
    assert watched.at(150.0).refused == ("", 0)


def test_stall_is_that_of_the_last_minute(watched: Watched) -> None:
    assert math.isnan(watched.at(100.0).stall)
    for second in range(300):
        watched.signs.reported(0.5 * min(second, 200), 100.0 + second)
        if second == 5:
            assert math.isnan(watched.at(105.0).stall), "five seconds are too few"
        if second == 150:
            assert watched.at(250.0).stall == pytest.approx(0.5)
    assert watched.at(399.0).stall == 0.0
    assert math.isnan(watched.at(399.0, training=False).stall)
    watched.observe(events.SessionOpened(2), 400.0)
    watched.signs.reported(0.0, 401.0)
    assert math.isnan(watched.at(401.0).stall), "the stall of the next process begins with zero"


def test_training_process_that_loads_and_one_that_is_gone(watched: Watched) -> None:
    assert watched.at(100.0, training=False).idle == math.inf
    watched.signs.detached(120.0)
    assert watched.at(150.0, training=False).idle == 30.0
    watched.signs.attached()
    assert watched.at(150.0, training=False).loads
    watched.observe(events.SessionOpened(2), 160.0)
    assert not watched.at(160.0).loads


def test_addresses_that_do_not_answer__until_they_do_or_for_two_minutes(watched: Watched) -> None:
    late, refused = Cause("GD-101", "timed out", "no answer"), Cause("GD-101", "refused")
    watched.unanswered.failed("c:1", (late, refused), "", 100.0)
    watched.unanswered.failed("d:2", (refused,), "", 110.0)
    watched.unanswered.failed(watched.partner.address, (refused,), "", 110.0)
    silent = watched.at(111.0).silent
    assert [(each.address, each.cause) for each in silent] == [("c:1", late), ("d:2", refused)]
    assert silent[0].text == "no peer answers at c:1 (timed out)"
    watched.unanswered.answered("d:2")
    assert [each.address for each in watched.at(112.0).silent] == ["c:1"]
    assert watched.at(100.0 + KEPT).silent == ()


def test_time_without_another_member__from_the_begin_and_from_the_last_one(watched: Watched) -> None:
    watched.others = []
    assert watched.at(70.0).unmet == 70.0 and watched.at(70.0).dialled == ("10.0.0.9:4710",)
    watched.others = [watched.partner]
    assert watched.at(80.0).unmet == 0.0
    watched.others = []
    assert watched.at(90.0).unmet == 10.0


def test_notices_of_dials_in_vain_pass_once_their_member_is_linked(watched: Watched) -> None:
    here, elsewhere = (Shown(Notice("GD-101", "any words"), 1.0, at) for at in (watched.partner.address, "c:1"))
    others = [elsewhere, Shown(Notice("GD-102", f"{here.address}: "), 1.0)]
    assert without_passed([here, *others], watched.signs.reached()) == others
    watched.membership.linked = lambda peer: False
    assert without_passed([here, elsewhere], watched.signs.reached()) == [here, elsewhere]


def test_advice_of_a_failed_dial_reaches_the_verdict(watched: Watched) -> None:
    watched.unanswered.failed("c:1", (Cause("GD-101", "refused"),), "start a peer there", 100.0)
    assert [each.do for each in watched.at(101.0).silent] == ["start a peer there"]


def test_training_command_is_starting_for_some_minutes__also_after_its_process_has_died() -> None:
    watched = Watched()
    assert not watched.at(1.0, training=False).starting, "there is no command"
    watched.signs = VitalSigns(watched.view, watched.unanswered, 0.0, trains=True)
    assert watched.at(STARTS - 1.0, training=False).starting and not watched.at(STARTS, training=False).starting
    watched.signs.detached(1000.0)
    for now, starting in [(1000.0 + STARTS - 1.0, True), (1000.0 + STARTS, False)]:
        assert watched.at(now, training=False).starting is starting


def test_command_is_starting_until_the_supervisor_says_that_it_has_not_attached() -> None:
    assert ATTACH_WITHIN == STARTS


def test_failed_members_count_and_those_that_left_do_not(watched: Watched) -> None:
    watched.others = []
    lost, gone = member(number(3), State.FAILED), member(number(4), State.LEFT)
    watched.membership.members = {lost.id: lost, gone.id: gone}
    signs = watched.at(100.0)
    assert (signs.live, signs.failed, signs.partner) == (1, (("host", 7.0),), "02020202")


def test_failed_checkpoint_counts_until_one_is_saved(watched: Watched) -> None:
    watched.signs.checkpoint_ended("no space left")
    assert watched.at(100.0).unsaved == "no space left"
    watched.signs.checkpoint_ended()
    assert watched.at(100.0).unsaved == ""


def test_ban_of_this_peer_is_told_and_a_banned_member_is_not_missed(watched: Watched) -> None:
    watched.partner = replace(watched.partner, state=State.FAILED)
    watched.membership.members[PARTNER] = watched.partner
    assert watched.at(10.0).failed and not watched.at(10.0).banned
    watched.admission.take([ban(PARTNER)])
    assert not watched.at(10.0).failed
    watched.admission.take([ban(number(1), 2, reason="stolen")])
    signs = watched.at(10.0)
    assert signs.banned == "the operator has banned this peer (stolen)"
    assert judge(signs).state == "refused" and "(stolen)" in judge(signs).text


def test_ends_of_the_training_command_count_for_ten_minutes__if_it_was_started_along(watched: Watched) -> None:
    alone, supervised = watched.signs, VitalSigns(watched.view, watched.unanswered, 0.0, trains=True)
    for signs in (alone, supervised):
        for now in (10.0, 20.0, 300.0):
            signs.detached(now)
    seen = {"training": False, "partner": b"", "transfer": "", "saving": False}
    assert [alone.collect(310.0, **seen).ended, supervised.collect(310.0, **seen).ended] == [0, 3]
    assert supervised.collect(615.0, **seen).ended == 2
    trains = events.RoundDone(round=1, clock=50, pseudo_gradient=0.1, movement=0.1, lr=0.7, momentum=0.8)
    supervised.observe(trains, 400.0)
    assert supervised.collect(410.0, **seen).ended == 3
    supervised.observe(trains, 430.0)
    assert supervised.collect(440.0, **seen).ended == 0, "it has trained for two minutes since"


def test_a_detach_is_no_end_of_the_command__until_the_supervisor_starts_it_again() -> None:
    """As a script that evaluates after its training, or trains several models one after another."""
    watched = Watched()
    watched.signs = VitalSigns(watched.view, watched.unanswered, 0.0, trains=True)
    for now in (10.0, 20.0, 30.0):
        watched.signs.attached()
        watched.signs.detached(now, left=True)
        signs = watched.at(now + 1.0, training=False)
        assert not signs.starting and signs.ended == 0 and judge(signs).state == "idle"
    watched.signs.command_started(40.0, again=True)
    signs = watched.at(41.0, training=False)
    assert signs.starting and signs.ended == 1, "its evaluation has crashed"
    watched.signs.detached(50.0)
    watched.signs.command_started(51.0, again=True)
    assert watched.at(52.0, training=False).ended == 2, "one death counts once"


def test_starts_that_fail_before_they_attach_count_too() -> None:
    watched = Watched()
    watched.signs = VitalSigns(watched.view, watched.unanswered, 0.0, trains=True)
    for now in (1.0, 20.0, 40.0, 60.0):
        watched.signs.command_started(now, again=now > 1.0)
    assert watched.at(61.0, training=False).ended == 3


def test_several_far_members_are_no_host_that_alone_has_diverged(watched: Watched) -> None:
    third = member(number(3))
    watched.others.append(third)
    watched.observe(exchange(distance=0.04), 110.0)
    assert not watched.at(111.0).all_far, "one of two may have diverged"
    watched.observe(exchange(partner=third.id, distance=0.01), 120.0)
    assert not watched.at(121.0).all_far, "one is near"
    watched.observe(exchange(partner=third.id, distance=0.05), 130.0)
    assert watched.at(131.0).all_far
    watched.runaway.active = True
    assert not watched.at(131.0).all_far, "it is this one"
    watched.runaway.active = False
    watched.others.remove(third)
    assert not watched.at(131.0).all_far
