"""The search for the largest packet, and the relay with small packets."""

import math
import socket
import threading
import time

import pytest

from gossipdp.runtime.network.identity import NetworkSecret
from peers.doctor import ways
from peers.doctor.findings import Light
from peers.doctor.passing import LEAST, Passing, Relay, Trials, search
from peers.doctor.talk import Network
from tests.peers.doctor.test_ways import met

LATER = math.inf


@pytest.mark.parametrize("largest", [LEAST, LEAST + 1, 576, 1280, 1300, 1420, 1492, 1498, 1499])
def test_search_finds_the_size_in_three_waves(largest: int) -> None:
    tried: list[int] = []

    def passes(size: int) -> bool:
        tried.append(size)
        return size <= largest

    assert search(1500, passes, LATER) == (largest, largest + 1)
    assert len(tried) == len(set(tried)) <= 3 * 12 and min(tried) >= LEAST


def test_lost_answers_and_trials_that_tell_nothing_make_no_size_too_large() -> None:
    assert search(1500, lambda size: None, LATER) == (0, 1500)
    assert search(1500, lambda size: False, LATER)[0] == 0
    assert search(1500, lambda size: None if size % 5 == 0 else size <= 1302, LATER) == (1302, 1303)
    assert search(9000, lambda size: size <= 1400 and size != 1129, LATER) == (1400, 1401)


def test_search_ends_when_its_time_is_over_with_what_it_knows() -> None:
    assert search(1500, lambda size: size <= 1300, -math.inf) == (0, 1500)
    until = time.monotonic() + 0.2

    def passes(size: int) -> bool:
        threading.Event().wait(max(0.0, until - time.monotonic()))
        return size <= 1300

    least, lost = search(1500, passes, until)
    assert least <= 1300 < lost and 1 < lost - least < 100


@pytest.mark.parametrize(
    ("host", "headers"), [("127.0.0.1", 40), pytest.param("[::1]", 60, marks=pytest.mark.needs("IPv6"))]
)
def test_relay_passes_on_both_ways_in_small_packets(host: str, headers: int) -> None:
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    with (
        socket.create_server((host.strip("[]"), 0), family=family) as listener,
        Relay(f"{host}:{listener.getsockname()[1]}", 1300) as relay,
    ):
        place, _, port = relay.address.rpartition(":")
        with socket.create_connection((place, int(port))) as near:
            there, _ = listener.accept()
            with there:
                assert there.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= 1300 - headers
                for source, drain in ((near, there), (there, near)):
                    source.sendall(b"x" * 100_000)
                    with drain.makefile("rb") as file:
                        assert len(file.read(100_000)) == 100_000
                near.close()
                assert there.recv(1) == b""


def test_relay_to_nobody_hangs_up_and_an_open_one_ends_with_its_context() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Relay(f"127.0.0.1:{port}", 1300) as relay:
            near = socket.create_connection(("127.0.0.1", int(relay.address.rpartition(":")[2])), 5.0)
            there, _ = taken.accept()
        assert near.recv(1) == b"" and there.recv(1) == b""
        near.close()
        there.close()
    with Relay(f"127.0.0.1:{port}", 1300) as relay:
        near = socket.create_connection(("127.0.0.1", int(relay.address.rpartition(":")[2])), 5.0)
        assert near.recv(1) == b""
        near.close()


@pytest.mark.parametrize(
    ("passing", "words", "mtu"),
    [
        (Passing(1300, 1301), "to the member, packets of at most 1300 bytes pass and larger ones are lost", 1300),
        (Passing(1280, 1330), "to the member, packets of 1280 bytes pass and of 1330 bytes are lost", 1280),
    ],
)
def test_black_hole_is_told_with_what_was_found(passing: Passing, words: str, mtu: int) -> None:
    (finding,) = ways.packets([met(passing={"to": passing, "from": Passing()})])
    assert (finding.light, finding.fault) == (Light.RED, "mtu-black-hole")
    assert f"{words}; from the member, large messages pass (bytes of IP packets with their headers)" in finding.said
    assert f"mtu {mtu}`" in finding.do and "now 1500" in finding.do


def test_way_on_which_no_packet_of_any_size_is_in_time_is_slow__no_black_hole() -> None:
    (finding,) = ways.packets([met(passing={"to": Passing(0, 1500), "from": Passing()})])
    assert (finding.light, finding.fault) == (Light.RED, "slow-link") and "mtu" not in finding.do


def test_black_holes_both_ways__the_smaller_size_is_advised() -> None:
    (finding,) = ways.packets([met(passing={"to": Passing(1400, 1401), "from": Passing(1300, 1301)})])
    assert "to the member, packets of at most 1400 bytes" in finding.said and "mtu 1300`" in finding.do
    assert "from the member, packets of at most 1300 bytes" in finding.said


class Path(Trials):
    """A way on which larger packets than these are lost, without a network."""

    def __init__(self, most: dict[str, int], *, linked: bool = True) -> None:
        super().__init__(Network("tiny", NetworkSecret.generate()), "192.0.2.1:4710", 1500, 0.01)
        self._most, self._linked = most, linked
        self.tried: list[tuple[str, int]] = []

    def _pass(self, direction: str, size: int, patience: float) -> bool | None:
        self.tried.append((direction, size))
        return size <= self._most[direction] if self._linked else None


LOST = Passing(0, 1500)


def test_both_directions_are_tried__the_two_ends_of_a_way_find_the_same() -> None:
    here, there = Path({"to": 1300, "from": 1400}), Path({"to": 1400, "from": 1300})
    found = here.both_ways({"to": LOST})
    assert found == {"to": Passing(1300, 1301), "from": Passing(1400, 1401)}
    assert there.both_ways({"to": LOST}) == {"to": found["from"], "from": found["to"]}


def test_direction_without_loss_costs_one_trial_or_none() -> None:
    path = Path({"to": 1300, "from": 1500})
    assert path.both_ways({"to": LOST}) == {"to": Passing(1300, 1301), "from": Passing()}
    assert [size for direction, size in path.tried if direction == "from"] == [1500]
    path = Path({"to": 1500, "from": 1300})
    assert path.both_ways({"to": Passing(), "from": LOST}) == {"to": Passing(), "from": Passing(1300, 1301)}
    assert {direction for direction, _ in path.tried} == {"from"}


def test_direction_without_a_link_is_left_out() -> None:
    assert Path({}, linked=False).both_ways({"to": LOST}) == {"to": LOST}
