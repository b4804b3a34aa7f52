"""A member forges records, suspects others without end and introduces members that do not exist. Real daemons go on."""

import time
from collections.abc import Callable
from functools import partial

import pytest
from msgspec.structs import replace

from gossipdp.protocol.membership.config import LOCAL
from gossipdp.protocol.membership.introductions import most_live
from gossipdp.protocol.membership.signatures import Signer
from gossipdp.protocol.wire.messages import Member, Ping, Pong, PushPull, State
from gossipdp.runtime.network.identity import Identity
from gossipdp.runtime.observability.notices import MEMBER_LINES
from tests.processes.hostile_member import HostileMember, remembered
from tests.processes.running import Host, Network

pytestmark = pytest.mark.processes


def forgeries(hostile: HostileMember) -> None:
    """To each member, one record in each other member's name: 24 a second in all."""
    for to in hostile.victims():
        for word in hostile.victims():
            if word.id != to.id:
                forged = (
                    replace(word, state=State.LEFT),
                    replace(word, state=State.LEFT, refutation=word.refutation + 1),
                    replace(word, incarnation=word.incarnation + 1, address=hostile.peer.view.me.address),
                )
                record = hostile.signed(replace(hostile.random.choice(forged), accusers=()))
                hostile.say(to, Pong(0, (record,)))


def doubts(hostile: HostileMember) -> None:
    """Claims that each member failed, at its latest genuine record, and asks for an answer."""
    for to in hostile.victims():
        words = [replace(word, accusers=()) for word in hostile.victims()]
        hostile.say(to, Ping(hostile.random.getrandbits(60), tuple(replace(w, state=State.FAILED) for w in words)))
        hostile.say(to, PushPull(True, tuple(replace(w, state=State.SUSPECT) for w in words)))


def ghosts(hostile: HostileMember, made: list[Member]) -> None:
    """To each member, sixty made-up members that do not exist."""
    for to in hostile.victims():
        for _ in range(5):
            hostile.say(to, Pong(0, tuple(hostile.random.sample(made, 12))))


def a_ghost(number: int) -> Member:
    identity = Identity(number.to_bytes(32, "big"))
    ghost = Member(identity.id, f"ghost-{number}", "127.0.0.1:9", 1, 0, State.ALIVE)
    return Signer(identity.sign, Identity.verify).sign_member(ghost)


def control_bytes(hosts: list[Host]) -> int:
    """Bytes that all hosts received together, without exchanges."""
    told = [host.status() for host in hosts]
    return sum(status["received_bytes"] - status["received_data_bytes"] for status in told)


def states(hosts: list[Host]) -> set[str]:
    """What these hosts believe of each other."""
    names = {host.name for host in hosts}
    return {row["state"] for host in hosts for row in host.members() if row["name"] in names}


def beset(hosts: list[Host], seconds: float) -> None:
    """Attack in every way for `seconds` each, and check what must hold of the running `hosts`."""
    hostile = HostileMember(hosts)
    ids = [host.status()["id"] for host in hosts]

    def goes_on(what: str) -> None:
        before = [host.exchanges() for host in hosts]
        more = lambda: all(host.exchanges() > count for host, count in zip(hosts, before, strict=True))  # noqa: E731
        hostile.until(f"exchanges in spite of {what}", more)

    try:
        known = lambda: all("hostile" in {row["name"] for row in host.members()} for host in hosts)  # noqa: E731
        hostile.until("all know it", known)
        hostile.until("it knows all", lambda: len(hostile.victims()) == len(hosts))
        # Forged records: no member is believed to have left, and the forger is set aside.
        seen: set[str] = set()

        def looks() -> bool:
            seen.update(states(hosts))
            return all(hostile.identity.id.hex() in host.status()["set_aside"] for host in hosts)

        hostile.until("all set it aside", looks, 0.25, partial(forgeries, hostile))
        hostile.act(seconds, 0.25, lambda: (forgeries(hostile), seen.update(states(hosts))))
        assert "left" not in seen, "that is what it has forged"
        goes_on("forged words")
        # Suspicions: each is refuted, and members do not answer each other without end.
        before, said, began = control_bytes(hosts), hostile.sent, time.monotonic()
        hostile.act(seconds, 0.05, partial(doubts, hostile))
        lasted = time.monotonic() - began
        most = len(hosts) * LOCAL.control_rate * (lasted + 8.0) + hostile.sent - said
        assert control_bytes(hosts) - before <= most
        goes_on("doubts")
        hostile.until("all are believed alive", lambda: states(hosts) == {"alive"})
        # Ghosts: few are believed, logged or remembered, and nothing stops.
        hostile.act(seconds, 0.1, partial(ghosts, hostile, [a_ghost(number) for number in range(600)]))
        for host in hosts:
            live = [row for row in host.members() if row["name"].startswith("ghost") and row["state"] == "alive"]
            # This many from the hostile member, and by way of each of the others.
            assert len(live) <= len(hosts) * most_live(len(hosts)), host.name
            assert host.text().count("member ghost") <= MEMBER_LINES * (1 + 3 * seconds / 60.0)
        goes_on("ghosts")
        assert [host.status()["id"] for host in hosts] == ids
        for host in hosts:
            others = {other.name for other in hosts if other is not host}
            hostile.until("members are kept", lambda host=host, others=others: remembered(host.home) >= others)
            assert not any(name.startswith("ghost") for name in remembered(host.home))
    finally:
        hostile.close()


@pytest.mark.long
def test_member_that_forges_doubts_and_invents_members_is_set_aside_and_the_network_goes_on(
    network: Callable[..., Network],
) -> None:
    two = network(2)
    two.start()
    two.until_it_runs()
    beset(two.hosts, 1.0)


@pytest.mark.long
def test_network_besieged_by_a_member_for_minutes_goes_on_and_restarts(network: Callable[..., Network]) -> None:
    five = network(5)
    five.start()
    five.until_it_runs()
    beset(five.hosts, 40.0)
    last = five.hosts[-1]
    assert last.daemon is not None
    last.daemon.kill()
    last.start_daemon()
    hostile = HostileMember(five.hosts)
    try:
        hostile.until("all are well", lambda: last.exchanges() >= 2 and states(five.hosts) == {"alive"})
    finally:
        hostile.close()
