"""What doctor finds where `[network] proxy` names a proxy: the proxy itself, and members behind it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from gossipdp.runtime.network import proxy as proxies
from gossipdp.runtime.network.dial_causes import DialFault
from gossipdp.runtime.network.proxy import Proxy
from peers import home as homes
from peers.doctor import examination, show, ways
from peers.doctor.case import Case
from peers.doctor.examination import Outside, examine
from peers.doctor.findings import Finding, Light
from peers.doctor.talk import Network
from peers.doctor.visits import visit
from simulations.processes.namespaces.processes import kept_port
from tests.runtime.network.test_proxy import LOGIN, answering, microsocks, says, serving
from tests.runtime.network.transports import Net, at


def case(proxy: Proxy, net: Net | None = None, *addresses: str, login: str = "") -> Case:
    config = homes.read_config(None, {"network.proxy": f"socks5://{proxy}", "network.proxy_login": login}, {})
    return Case(None, config, None if net is None else Network("tiny", net.secret), addresses)


@pytest.fixture(autouse=True)
def no_router(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "routers", list)
    monkeypatch.setattr(examination, "outside", lambda *_: Outside(why="none was asked"))


def found(case: Case, net: Net | None = None) -> dict[str, Finding]:
    """The findings, while the transports of the test go on."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(examine(case, with_torch=False)))
    thread.start()
    (net or Net()).until(lambda: not thread.is_alive())
    [findings] = results
    return {each.about: each for each in findings}


@pytest.mark.parametrize(
    ("reply", "fault", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "no-proxy", "answered 'HTTP/1.1 400"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no-proxy", "answered 'SSH-2.0"),
        (b"", "no-proxy", "closed the connection"),
        (b"\x05\xff", "proxy-login", "wants a user and a password"),
    ],
)
def test_wrong_proxy_is_a_finding_and_no_way_is_blamed_for_it(reply: bytes, fault: str, words: str) -> None:
    with answering(says(reply)) as proxy:
        findings = found(case(proxy, None, "192.0.2.1:4710"))
    finding = findings["proxy"]
    assert (finding.light, finding.fault) == (Light.RED, fault) and words in finding.said and finding.do
    assert findings["network"].light is Light.GREY and not any(about.startswith("way") for about in findings)


def test_dead_and_silent_proxies_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies, "FIRST", 0.3)
    with kept_port() as keeper:
        assert found(case(Proxy("127.0.0.1", keeper.getsockname()[1])))["proxy"].fault == DialFault.NO_PROXY
    with answering(lambda connection: None) as proxy:
        finding = found(case(proxy))["proxy"]
    assert finding.fault == DialFault.NO_PROXY and "does not answer" in finding.said


def test_proxy_that_refuses_the_target_is_named_at_its_address() -> None:
    with answering(says(b"\x05\x00", b"\x05\x02\x00\x01" + bytes(6))) as proxy:
        finding = ways.ways([visit("192.0.2.1:4710", None, proxy=proxy)])[0]
    assert (finding.light, finding.fault) == (Light.RED, "proxy-refuses")
    assert finding.said == "proxy ok, then the proxy does not allow it" and finding.do


@pytest.mark.needs("microsocks")
def test_member_behind_a_real_proxy_is_met_and_what_is_the_proxys_is_not_this_hosts(
    net: Net, tmp_path: Path, closed_port: int
) -> None:
    file = tmp_path / "login"
    file.write_bytes(b":".join(LOGIN))
    file.chmod(0o600)
    member = net.peer()
    with serving(microsocks(*(each.decode() for each in LOGIN))) as proxy:
        findings = found(case(proxy, net, at(member), f"127.0.0.1:{closed_port}", login=str(file)), net)
    assert findings["proxy"].light is Light.GREEN
    assert "answers in" in findings[f"way to {at(member)}"].said
    dead = findings[f"way to 127.0.0.1:{closed_port}"]
    assert (dead.light, dead.fault) == (Light.YELLOW, "refused") and "proxy ok, then" in dead.said
    assert "members see the proxy" in findings["address"].said
    assert findings[f"packets, {at(member)}"].light is Light.GREEN
    assert findings["dialled by others"].light is Light.GREY
    assert LOGIN[1].decode() not in str(show.as_json(list(findings.values()), 0.0))
