"""Operations on the vectors exclude each other."""

from __future__ import annotations

from random import Random

from gossipdp.protocol.epidemic.exclusive import Exclusive


def test_one_operation_runs_at_a_time_and_those_ahead_come_first():
    turns, begun = Exclusive(), []

    def wanting(name, *, works=True):
        def begin():
            begun.append(name)
            return works

        return begin

    turns.ask(wanting("round"))
    turns.ask(wanting("freeze"))
    turns.ask(wanting("nothing to do", works=False), ahead=True)
    turns.ask(wanting("increment"), ahead=True)
    assert begun == ["round"] and turns.busy and not turns.idle
    turns.over()
    assert begun == ["round", "nothing to do", "increment"]
    turns.over()
    assert begun[-1] == "freeze"
    turns.over()
    assert turns.idle


def test_operation_asked_for_while_another_begins_waits():
    turns, begun = Exclusive(), []

    def begin():
        turns.ask(lambda: begun.append("second") or True)
        begun.append("first")
        return True

    turns.ask(begin)
    assert begun == ["first"]
    turns.over()
    assert begun == ["first", "second"]


def test_operations_never_overlap_in_random_orders():
    random, turns = Random(5), Exclusive()
    running, most = [0], [0]

    def begin():
        running[0] += 1
        most[0] = max(most[0], running[0])
        return True

    asked = done = 0
    for _ in range(500):
        if random.random() < 0.5:
            asked += 1
            turns.ask(begin, ahead=random.random() < 0.5)
        elif turns.busy:
            running[0] -= 1
            done += 1
            turns.over()
    while turns.busy:
        running[0] -= 1
        done += 1
        turns.over()
    assert most == [1] and done == asked
