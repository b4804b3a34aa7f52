"""Which relays a hidden peer asks, and how hidden peers share them. All know all records at once here."""

import itertools
import math
from collections import Counter, deque
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.membership.config import LAN
from gossipdp.protocol.membership.relays import AGAIN, BALANCE, MOST_CARRIED, RELAYS, SHARE, RelayChoice
from gossipdp.protocol.membership.view import View
from gossipdp.protocol.wire.messages import CARRIES, Member, State, through
from tests.protocol.membership.machines import peer_id


def relay(number: int) -> Member:
    return Member(peer_id(number), f"r{number}", f"10.0.0.{number}:1", 1, 0, State.ALIVE, others=(CARRIES,))


class Hidden:
    """A hidden peer. Its relays answer at once, and say no beyond `MOST_CARRIED`."""

    def __init__(self, town: "Town", number: int) -> None:
        me = Member(peer_id(number), f"h{number}", "", 1, 0, State.ALIVE)
        self.town, self.view, self.least = town, View(LAN, me, Admission(me.id)), RELAYS
        for member in town.records():
            self.view.put(member, 0.0)
        own = SimpleNamespace(move=self.move)
        self.choice = RelayChoice(self.view, own, deque(), hidden=True, now=town.now)  # type: ignore[arg-type]

    @property
    def relays(self) -> list[bytes]:
        return self.view.me.relays

    def move(self, addresses: tuple[str, ...], now: float) -> None:
        me = self.view.me
        first, others = (addresses[0], addresses[1:]) if addresses else ("", ())
        self.view.change_me(replace(me, address=first, others=others, refutation=me.refutation + 1))
        self.town.tell(self.view.me)

    def tick(self, now: float) -> None:
        self.choice.handle_timer(now)
        for each in self.choice.chosen:
            if self.view.me.id not in self.town.taken[each]:
                taken = len(self.town.taken[each]) < MOST_CARRIED
                if taken:
                    self.town.taken[each].add(self.view.me.id)
                self.choice.answered(each, taken, now)
        for each, members in self.town.taken.items():
            if each not in self.choice.chosen:
                members.discard(self.view.me.id)


class Town:
    def __init__(self) -> None:
        self.now = 0.0
        self.relays: list[Member] = []
        self.hidden: list[Hidden] = []
        self.taken: dict[bytes, set[bytes]] = {}

    def records(self) -> list[Member]:
        return [*self.relays, *(host.view.me for host in self.hidden)]

    def tell(self, record: Member) -> None:
        for host in self.hidden:
            if host.view.me.id != record.id:
                host.view.put(record, self.now)

    def open(self, number: int) -> None:
        self.relays.append(relay(number))
        self.taken[self.relays[-1].id] = set()
        self.tell(self.relays[-1])

    def add(self, count: int) -> None:
        for _ in range(count):
            self.hidden.append(Hidden(self, 1000 + len(self.hidden)))
            self.tell(self.hidden[-1].view.me)
            self.hidden[-1].tick(self.now)

    def run(self, ticks: int) -> int:
        """Returns how many addresses changed."""
        before = sum(host.view.me.refutation for host in self.hidden)
        for _ in range(ticks):
            self.now += LAN.probe_interval
            for host in self.hidden:
                host.tick(self.now)
                host.least = min(host.least, len(host.relays))
        return sum(host.view.me.refutation for host in self.hidden) - before

    @property
    def loads(self) -> Counter[bytes]:
        loads = Counter(relay for host in self.hidden for relay in host.relays)
        assert loads == Counter({relay: len(members) for relay, members in self.taken.items()})
        return loads


def test_peers_that_came_while_few_relays_were_known_go_to_the_others():
    town = Town()
    for number in (1, 2):
        town.open(number)
    town.add(30)
    assert sorted(town.loads.values()) == [30, 30]
    for number in (3, 4, 5):
        town.open(number)
    town.add(10)
    town.run(int(3 * BALANCE))
    assert len(town.loads) == 5 and max(town.loads.values()) <= math.ceil(SHARE * 2 * 40 / 5)
    assert all(host.least == RELAYS for host in town.hidden), "each asks the new relay before it leaves the old one"
    assert town.run(int(4 * BALANCE)) == 0, "nobody moves once all have their share"


def test_peers_that_come_when_a_relay_has_its_share_ask_others():
    town = Town()
    for number in range(1, 11):
        town.open(number)
    town.add(100)
    town.run(1)
    assert sum(town.loads.values()) == 200 and max(town.loads.values()) <= math.ceil(SHARE * 20)


def test_where_there_is_no_room_for_two_relays_of_each_peer_all_have_one():
    town = Town()
    for number in (1, 2):
        town.open(number)
    town.add(100)
    town.run(int(AGAIN + 2 * BALANCE))
    assert {len(host.relays) for host in town.hidden} == {1}
    assert max(town.loads.values()) <= MOST_CARRIED
    for number in (3, 4, 5):
        town.open(number)
    town.run(int(2 * BALANCE))
    assert {len(host.relays) for host in town.hidden} == {2}, "there is room again"


def test_near_relay_comes_first__and_one_with_room_before_it():
    town = Town()
    for number in range(1, 5):
        town.open(number)
    far, host = (Hidden(town, 1000) for _ in range(2))
    far.tick(1.0)
    near = next(each.id for each in town.relays if each.id not in far.relays)
    host.view.hear(near, 0.0)
    host.view.contacts.sight(near).rtt = 0.005
    host.tick(1.0)
    assert near in host.choice.chosen
    town = Town()
    town.open(2)
    town.open(3)
    town.add(20)
    town.open(4)
    host = Hidden(town, 2000)
    host.view.hear(town.relays[0].id, 0.0)
    host.view.contacts.sight(town.relays[0].id).rtt = 0.005
    host.tick(1.0)
    assert town.relays[2].id in host.relays, "the near ones have more than their share"


def test_half_of_the_members_reach_a_hidden_one_through_its_second_relay():
    hidden = replace(relay(9), address=through(peer_id(1), peer_id(9)), others=(through(peer_id(2), peer_id(9)),))
    first = Counter()
    for number in range(100, 300):
        view = View(LAN, relay(number), Admission(peer_id(number)))
        view.put(hidden, 0.0)
        assert {view.address_of(hidden.id), *view.others_of(hidden.id)} == {*hidden.addresses}
        first[view.address_of(hidden.id)] += 1
    assert min(first[address] for address in hidden.addresses) > 70
    dialable = replace(relay(9), others=("10.0.1.9:1",))
    view.put(replace(dialable, refutation=1), 0.0)
    assert (view.address_of(hidden.id), view.others_of(hidden.id)) == ("10.0.0.9:1", ("10.0.1.9:1",))


def test_relay_that_says_no_is_asked_ever_less_often() -> None:
    town = Town()
    town.open(1)
    town.add(1)
    [choice] = [host.choice for host in town.hidden]
    asked = []
    for _ in range(int(10 * AGAIN)):
        town.now += 1.0
        choice.handle_timer(town.now)
        if choice.chosen:
            asked.append(town.now)
            choice.answered(town.relays[0].id, False, town.now)
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert [round(pause / AGAIN) for pause in pauses] == [1, 2, 4]


@pytest.mark.parametrize("both", [True, False])
def test_relays_that_answer_soon_are_one_change_of_the_address(both: bool) -> None:
    """A change is news to the whole network. A relay that does not answer delays the other for a moment."""
    town = Town()
    for number in (1, 2):
        town.open(number)
    host = Hidden(town, 1000)
    host.choice.handle_timer(0.0)
    first, second = host.choice.chosen
    host.choice.answered(first, True, 0.1)
    assert host.relays == []
    if both:
        host.choice.answered(second, True, 0.3)
        assert sorted(host.relays) == [first, second]
    else:
        host.choice.handle_timer(0.1 + LAN.probe_interval)
        assert host.relays == [first]
    assert host.view.me.refutation == 1
