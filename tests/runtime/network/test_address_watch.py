"""Another address of this host is noticed, once it has been seen twice in a row."""

import select
import threading

from gossipdp.runtime.network.address_watch import AddressWatch
from gossipdp.runtime.network.addresses import Choice


def choice(*addresses):
    return Choice(addresses, "a reason")


class Looks:
    """Answers one look after another, and then the last one for ever."""

    def __init__(self, *seen):
        self.seen, self.over = [*seen], threading.Event()

    def __call__(self):
        if len(self.seen) > 1:
            return self.seen.pop(0)
        self.over.set()
        return self.seen[0]


def test_another_address_is_told_once_it_stays():
    looks = Looks(choice("a:1"), choice("b:1"), choice("c:1"), choice("c:1"), choice("c:1"))
    watch = AddressWatch(looks, choice("a:1"), every=0.0)
    assert select.select([watch.fileno()], [], [], 60.0)[0]
    assert watch.collect() == [choice("c:1")]
    assert watch.collect() == []
    watch.close()


def test_address_that_comes_back_is_no_change():
    looks = Looks(choice("a:1"), choice("b:1"), choice("a:1"), choice(), choice("a:1"))
    watch = AddressWatch(looks, choice("a:1"), every=0.0)
    assert looks.over.wait(60.0)
    assert watch.collect() == []
    watch.close()


def test_other_reason_for_the_same_addresses_is_no_change():
    looks = Looks(*5 * [Choice(("a:1",), "another reason")])
    watch = AddressWatch(looks, choice("a:1"), every=0.0)
    assert looks.over.wait(60.0)
    assert watch.collect() == []
    watch.close()
