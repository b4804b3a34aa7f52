"""The end of a run with `epidemic`: members are asked until all hold the same, then the last epochs settle."""

from __future__ import annotations

from gossipdp.protocol.epidemic.closing import ASKED, TIMES, Closing


class Rig:
    def __init__(self, *others):
        self.agree, self.asked, self.settled, self.rests = set(), [], 0, True
        self.closing = Closing(
            2.0, agrees=lambda peer: peer in self.agree, ask=self.asked.append, idle=lambda: self.rests,
            settle=self._settle,
        )  # fmt: skip
        self.others = list(others)

    def _settle(self):
        self.settled += 1


def test_those_that_do_not_agree_are_asked_again_and_again():
    rig = Rig(b"a", b"b")
    assert not rig.closing.closeness.over and rig.closing.timer() is None
    rig.closing.meet(rig.others, 10.0)
    assert rig.asked == [[b"a", b"b"]] and rig.closing.timer() == 12.0
    rig.agree.add(b"a")
    rig.closing.handle_timer(11.0)
    rig.closing.handle_timer(12.0)
    assert rig.asked == [[b"a", b"b"], [b"b"]] and not rig.closing.closeness.over


def test_epochs_settle_once_when_all_agree_and_all_is_applied():
    rig = Rig(b"a")
    rig.closing.meet(rig.others, 0.0)
    rig.agree.add(b"a")
    rig.rests = False
    rig.closing.handle_timer(2.0)
    assert not rig.settled and not rig.closing.closeness.over
    rig.rests = True
    rig.closing.handle_timer(4.0)
    rig.closing.handle_timer(6.0)
    assert rig.settled == 1 and rig.closing.closeness.agrees and rig.closing.closeness.now == 0.0
    rig.agree.clear()
    assert not rig.closing.closeness.over, "an increment has come"


def test_a_member_that_never_answers_is_given_up():
    rig = Rig(b"a")
    rig.closing.meet(rig.others, 0.0)
    while (due := rig.closing.timer()) is not None:
        rig.closing.handle_timer(due)
    assert len(rig.asked) == TIMES and rig.closing.closeness.over and not rig.closing.closeness.agrees


def test_few_are_asked_at_a_time_and_a_change_of_members_asks_anew():
    rig = Rig(*(bytes([number]) for number in range(ASKED + 5)))
    rig.closing.meet(rig.others, 0.0)
    assert len(rig.asked[0]) == ASKED
    rig.closing.meet([b"new"], 0.5)
    assert rig.asked[-1] == [b"new"]


def test_alone_it_settles_at_once():
    rig = Rig()
    rig.closing.meet([], 0.0)
    assert rig.settled == 1 and rig.closing.closeness.agrees
