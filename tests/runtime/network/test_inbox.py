"""The queue of unread messages: order, turns and bounds."""

from gossipdp.runtime.network.zmq_wire import OVERHEAD, Inbox


def inbox(messages: int = 10, size: int = 1 << 20, total: int = 1 << 20) -> Inbox[str, int]:
    return Inbox(messages, size, total)


def test_messages_of_several_connections__taken_in_turn_and_in_order() -> None:
    box = inbox()
    for key, number in (("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6)):
        assert box.add(key, number, 10) is None
    assert [number for _, number, _ in box.take(4, 1000)] == [1, 4, 5, 2]
    assert [number for _, number, _ in box.take(4, 1000)] == [6, 3]
    assert not box and box.bytes == 0


def test_turn_ends_once_its_bytes_are_taken() -> None:
    box = inbox()
    for number in range(4):
        box.add("a", number, 100)
    assert [number for _, number, _ in box.take(64, 150)] == [0, 1]


def test_connection_past_its_messages_or_bytes__named() -> None:
    box = inbox(messages=2)
    assert [box.add("a", n, 1) for n in range(3)] == [None, None, "a"]
    box = inbox(size=2 * OVERHEAD)
    assert [box.add("a", n, OVERHEAD // 2) for n in range(2)] == [None, "a"]
    assert list(box.drop("a")) == [(0, OVERHEAD // 2), (1, OVERHEAD // 2)]
    assert box.bytes == 0 and not box


def test_all_past_the_total__connection_with_the_most_is_named() -> None:
    box = inbox(total=4 * OVERHEAD)
    assert box.add("a", 1, 2 * OVERHEAD) is None
    assert box.add("b", 2, 1) == "a"


def test_connection_dropped_while_a_turn_takes__rest_goes_on() -> None:
    box = inbox()
    for key in "aab":
        box.add(key, 0, 1)
    taken = []
    for key, _, _ in box.take(64, 1000):
        taken.append(key)
        box.drop("a")
    assert taken == ["a", "b"]
