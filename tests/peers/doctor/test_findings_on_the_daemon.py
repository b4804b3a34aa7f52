"""What doctor makes of the answers of this home's daemon."""

from pathlib import Path
from typing import Any

import pytest

from peers.doctor.daemon import ABSENT, Daemon, alive
from peers.doctor.examination import told_by
from peers.doctor.findings import Light

HEALTHY = {"verdict": {"state": "healthy", "text": "healthy: 2 of 2 peers"}, "training": "attached", "steps": 934}


def lights(status: dict[str, Any], home: Path) -> dict[str, tuple[Light, str]]:
    return {each.about: (each.light, each.fault) for each in alive(home, Daemon(True, status, []))}


def test_daemon_does_not_run(tmp_path: Path) -> None:
    (finding,) = alive(tmp_path, ABSENT)
    assert (finding.about, finding.light) == ("daemon", Light.GREY)
    (tmp_path / "run").write_text("00")
    (finding,) = alive(tmp_path, ABSENT)
    assert (finding.light, finding.fault) == (Light.YELLOW, "daemon-down"), "it has trained in a network"
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "final.json").write_text("{}")
    assert alive(tmp_path, ABSENT)[0].light is Light.GREY, "its run is finished"


def test_advice_is_told_once_and_an_exchange_with_its_age(tmp_path: Path) -> None:
    verdict = {"state": "degraded", "text": "degraded: x; do: mend it", "do": ["mend it"]}
    last = {"chunks": 8, "of": 16}
    status = HEALTHY | {"verdict": verdict, "last_exchange": last, "recent_exchanges": [{**last, "ago": 75.0}]}
    found = {each.about: each for each in alive(tmp_path, Daemon(True, status, []))}
    assert (found["daemon"].said, found["daemon"].do) == ("degraded: x", "mend it")
    assert found["last exchange"].said == "8 of 16 chunks averaged, 1m 15s ago"


def test_daemon_hangs_or_is_stopped(tmp_path: Path) -> None:
    assert [each.fault for each in alive(tmp_path, Daemon(True, {}, []))] == ["daemon-hangs"]
    assert [each.fault for each in alive(tmp_path, Daemon(True, {}, [], 7))] == ["daemon-stopped"]


def test_training_of_before_the_daemons_start_does_not_count_as_a_stall(tmp_path: Path) -> None:
    """After a restart of the daemon the training process has lost more seconds than the daemon has lived."""
    found = lights(HEALTHY | {"stall_seconds": 6.0, "uptime": 10.0, "stall": 0.11}, tmp_path)
    assert found["daemon"] == (Light.GREEN, "") and found["training"] == (Light.GREEN, "")


@pytest.mark.parametrize(
    ("changes", "about", "light", "fault"),
    [
        ({"stall": 0.5}, "training", Light.YELLOW, "stall"),
        ({"stall": None}, "training", Light.GREEN, ""),
        ({"training": "none"}, "training", Light.GREY, ""),
        ({"consensus_ratio": 1.5}, "agreement", Light.GREEN, ""),
        ({"consensus_ratio": 3.0}, "agreement", Light.YELLOW, "apart"),
        ({"last_exchange": {"chunks": 8, "of": 8}}, "last exchange", Light.GREEN, ""),
        ({"verdict": {"state": "degraded", "text": "degraded: x"}}, "daemon", Light.RED, "peer-degraded"),
        ({"verdict": {"state": "alone", "text": "alone"}}, "daemon", Light.GREEN, ""),
    ],
)
def test_findings(changes: dict[str, Any], about: str, light: Light, fault: str, tmp_path: Path) -> None:
    assert lights(HEALTHY | changes, tmp_path)[about] == (light, fault)


@pytest.mark.parametrize(
    ("status", "light", "fault"),
    [
        ({"addresses": ["10.0.0.5:4710"], "address_why": "its first private address", "dialled": True}, "GREEN", ""),
        ({"addresses": ["10.0.0.5:4710"], "address_why": "its first private address"}, "GREY", ""),
        ({"addresses": [], "address_why": "the router maps no port"}, "YELLOW", "not-dialable"),
        ({"addresses": [], "relays": ["r1"], "address_why": "reach this host through r1"}, "GREY", ""),
    ],
)
def test_addresses_are_fine_once_members_have_dialled_them(status: dict[str, Any], light: str, fault: str) -> None:
    found = told_by(Daemon(True, status, []))
    assert (found.light, found.fault) == (Light[light], fault) and status["address_why"] in found.said
