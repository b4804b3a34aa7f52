"""Mappings of the router's ports: NAT-PMP against a router on loopback, UPnP against an object in its place."""

import select
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gossipdp.runtime.network import nat_pmp, router_mapping
from gossipdp.runtime.network.nat_pmp import Mapping, NatPmp, RouterError, default_gateway
from gossipdp.runtime.network.router_mapping import Mapped, RouterMapping
from gossipdp.runtime.network.upnp import OTHERS, PERMANENT, Upnp


class Gateway:
    """A NAT-PMP router (RFC 6886) on loopback. It maps port 4710 to 5000, and sends something else first."""

    def __init__(self, result: int = 0, silent: int = 0, outside: str = "8.8.4.4") -> None:
        self.result, self.silent, self.outside = result, silent, outside
        self.asked: list[tuple[int, ...]] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            request, sender = self._socket.recvfrom(64)
            if request == b"end":
                return
            if self.silent:
                self.silent -= 1
                continue
            if request == b"\0\0":
                answer = struct.pack("!BBHI4s", 0, 128, self.result, 9, socket.inet_aton(self.outside))
            else:
                _, opcode, _, inside, outside, lifetime = struct.unpack("!BBHHHI", request)
                self.asked.append((opcode, inside, outside, lifetime))
                answer = struct.pack("!BBHIHHI", 0, 128 + opcode, self.result, 9, inside, 5000, min(lifetime, 3600))
            self._socket.sendto(b"\0\x99garbage", sender)
            self._socket.sendto(answer, sender)

    def close(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            end.sendto(b"end", ("127.0.0.1", self.port))
        self._thread.join()
        self._socket.close()


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    made = Gateway()
    yield made
    made.close()


def asking(gateway: Gateway) -> NatPmp:
    return NatPmp("127.0.0.1", gateway.port, 0.05)


def test_nat_pmp__maps_renews_and_removes_a_tcp_port(gateway: Gateway) -> None:
    router = asking(gateway)
    gateway.silent = 2  # two lost packets
    assert router.map(4710, 7200.0) == Mapping("8.8.4.4", 5000, 3600.0)
    router.unmap(4710)
    assert gateway.asked[0] == (2, 4710, 4710, 7200) and gateway.asked[-1] == (2, 4710, 0, 0)


def test_nat_pmp_refused__the_reason_of_the_router(gateway: Gateway) -> None:
    gateway.result = 2
    with pytest.raises(RouterError, match=r"127\.0\.0\.1 refused: not authorized"):
        asking(gateway).map(4710, 7200.0)


def test_no_nat_pmp_router__said_so(gateway: Gateway) -> None:
    gateway.silent = 1 << 20
    with pytest.raises(RouterError, match="does not answer NAT-PMP"):
        NatPmp("127.0.0.1", gateway.port, 0.005).map(4710, 7200.0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(RouterError, match="does not speak NAT-PMP"):
        NatPmp("127.0.0.1", port, 0.05).map(4710, 7200.0)


def test_default_gateway_is_that_of_the_route_with_the_least_metric(tmp_path: Path) -> None:
    head = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
    rows = [
        "eth0 00000000 0101A8C0 0003 0 0 200 00000000 0 0 0\n",
        "eth1 00000000 FE00A8C0 0003 0 0 100 00000000 0 0 0\n",
        "eth0 0001A8C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n",
    ]
    (tmp_path / "route").write_text(head + "".join(rows))
    assert default_gateway(tmp_path / "route") == "192.168.0.254"
    (tmp_path / "route").write_text(head)
    assert default_gateway(tmp_path / "route") == default_gateway(tmp_path / "none") == ""


class Client:
    """In the place of miniupnpc.UPnP(): its methods, with the arguments of miniupnpc 2.3."""

    lanaddr = "192.168.1.7"
    discoverdelay = 0

    def __init__(self, *refusals: str) -> None:
        self.refusals = list(refusals)
        self.calls: list[tuple[Any, ...]] = []

    def discover(self) -> int:
        return 1

    def selectigd(self) -> str:
        return "http://192.168.1.1:5000/rootDesc.xml"

    def externalipaddress(self) -> str:
        return "8.8.4.4"

    def addportmapping(
        self, outside: int, protocol: str, host: str, port: int, label: str, remote: str, lease: int
    ) -> bool:
        self.calls.append((outside, protocol, host, port, label, remote, lease))
        if self.refusals:
            raise Exception(self.refusals.pop(0))
        return True

    def deleteportmapping(self, outside: int, protocol: str) -> bool:
        self.calls.append((outside, protocol))
        return True


def test_upnp__maps_the_same_port_and_removes_it() -> None:
    client = Client()
    router = Upnp(client)
    assert router.map(4710, 7200.0) == router.map(4710, 7200.0) == Mapping("8.8.4.4", 4710, 7200.0)
    router.unmap(4710)
    mapped = (4710, "TCP", "192.168.1.7", 4710, "gossipdp", "", 7200)
    assert client.calls == [mapped, mapped, (4710, "TCP")]


def test_upnp_router_knows_only_permanent_leases__asked_for_one() -> None:
    client = Client(PERMANENT)
    assert Upnp(client).map(4710, 7200.0).port == 4710
    assert [call[-1] for call in client.calls] == [7200, 0]


def test_upnp_port_is_taken__another_one_and_then_the_reason() -> None:
    client = Client("ConflictInMappingEntry", "ConflictInMappingEntry")
    found = Upnp(client).map(4710, 7200.0)
    assert found.port == client.calls[-1][0] != 4710
    with pytest.raises(RouterError, match="did not map the port: ConflictInMappingEntry"):
        Upnp(Client(*["ConflictInMappingEntry"] * (OTHERS + 2))).map(4710, 7200.0)


def test_upnp_outside_address__of_a_router_that_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    assert Upnp(client).outside_address() == "8.8.4.4" and client.calls == []
    for said, why in (
        ("0.0.0.0", "has no connection"),
        ("a name\x1b[2J", "does not report its outside"),
        ("", "does not report its outside"),
    ):
        monkeypatch.setattr(client, "externalipaddress", lambda said=said: said)
        with pytest.raises(RouterError, match=why):
            Upnp(client).outside_address()


def test_upnp_finds_no_router_or_no_library__said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    monkeypatch.setattr(client, "selectigd", lambda: (_ for _ in ()).throw(Exception("No UPnP device discovered")))
    with pytest.raises(RouterError, match="no UPnP router answers"):
        Upnp(client).map(4710, 7200.0)
    monkeypatch.setitem(__import__("sys").modules, "miniupnpc", None)
    with pytest.raises(RouterError, match=r"pip install 'gossipdp\[nat\]'"):
        Upnp().map(4710, 7200.0)


# -- the thread --------------------------------------------------------------------------------------------------


class Scripted:
    """A way whose answers are given."""

    name = "scripted"

    def __init__(self, *answers: Mapping | RouterError) -> None:
        self.answers, self.unmapped = list(answers), 0

    def map(self, port: int, lifetime: float) -> Mapping:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, RouterError):
            raise answer
        return answer

    def unmap(self, port: int) -> None:
        self.unmapped += 1


def collected(mapping: RouterMapping, count: int) -> list[Mapped | str]:
    found: list[Mapped | str] = []
    while len(found) < count:
        assert select.select([mapping.fileno()], [], [], 10)[0], found
        found += mapping.collect()
    return found


def test_router_maps_moves_and_loses_a_port__each_change_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_mapping, "SHORTEST", 0.01)
    monkeypatch.setattr(router_mapping, "AGAIN", 0.01)
    first, second = Mapping("8.8.4.4", 4710, 0.02), Mapping("8.8.8.8", 4711, 0.02)
    way = Scripted(first, first, second, RouterError("the router has no connection"), second)
    mapping = RouterMapping(4710, [way])
    assert collected(mapping, 4) == [
        Mapped("8.8.4.4:4710", "scripted"),
        Mapped("8.8.8.8:4711", "scripted"),
        "the router has no connection",
        Mapped("8.8.8.8:4711", "scripted"),
    ]
    mapping.close()
    assert way.unmapped == 1


def test_first_protocol_fails_or_the_router_is_behind_another__the_next_is_tried() -> None:
    behind, public = Scripted(Mapping("100.64.1.2", 4710, 7200.0)), Scripted(Mapping("8.8.4.4", 4710, 7200.0))
    mapping = RouterMapping(4710, [Scripted(RouterError("silent")), behind, public])
    assert collected(mapping, 1) == [Mapped("8.8.4.4:4710", "scripted")]
    mapping.close()
    assert behind.unmapped == public.unmapped == 1
    mapping = RouterMapping(4710, [Scripted(RouterError("silent")), behind])
    (why,) = collected(mapping, 1)
    assert why == "silent; the router's own address 100.64.1.2 is not public: another router is before it"
    mapping.close()


def test_nat_pmp_by_the_thread__mapped_and_removed_at_the_end(gateway: Gateway) -> None:
    mapping = RouterMapping(4710, [asking(gateway)])
    assert collected(mapping, 1) == [Mapped("8.8.4.4:5000", "NAT-PMP")]
    mapping.close()
    assert gateway.asked == [(2, 4710, 4710, 7200), (2, 4710, 0, 0)]
    assert nat_pmp.SERVER_PORT == 5351
