"""The search for the largest packet, and the relay with small packets."""

from __future__ import annotations

import math
import socket
import threading
import time

import pytest

from peers.doctor import ways
from peers.doctor.findings import Light
from peers.doctor.path_mtu import LEAST, Relay, search
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


@pytest.mark.parametrize(("host", "headers"), [("127.0.0.1", 40), ("[::1]", 60)])
def test_relay_passes_on_both_ways_in_small_packets(host: str, headers: int) -> None:
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    try:
        listener = socket.create_server((host.strip("[]"), 0), family=family)
    except OSError:
        pytest.skip("this host has no IPv6")
    with listener, Relay(f"{host}:{listener.getsockname()[1]}", 1300) as relay:
        place, _, port = relay.address.rpartition(":")
        with socket.create_connection((place, int(port)), 5.0) as near:
            there, _ = listener.accept()
            with there:
                there.settimeout(5.0)
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
    ("passes", "lost", "words", "mtu"),
    [
        (1300, 1301, "packets of at most 1300 bytes pass, and larger ones to the member are lost", 1300),
        (1280, 1330, "packets of 1280 bytes pass, and of 1330 bytes to the member are lost", 1280),
        (0, 1500, "small messages pass, and large ones to the member are lost", 1280),
    ],
)
def test_black_hole_is_told_with_what_was_found(passes: int, lost: int, words: str, mtu: int) -> None:
    (finding,) = ways.packets([met(one_way="to", passes=passes, lost=lost)])
    assert (finding.light, finding.fault) == (Light.RED, "mtu-black-hole")
    assert words in finding.said and f"mtu {mtu}`" in finding.do and "now 1500" in finding.do
