"""Without a daemon, the error leads to the one that runs, or to its supervisor."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossipdp.errors import UnreachableError
from gossipdp.runtime import link as links


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this user's homes, with two that were made."""
    for name in ("GOSSIPDP_HOME", "GOSSIPDP_ATTEMPT", "GOSSIPDP_NETWORK_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("runs", "stopped"):
        (tmp_path / ".gossipdp" / name).mkdir(parents=True)
        (tmp_path / ".gossipdp" / name / "identity.key").touch()
    return tmp_path / ".gossipdp"


def advice(home: Path) -> str:
    with pytest.raises(UnreachableError, match="GD-105") as caught:
        links.Link.connect(home)
    return str(caught.value.do)


def test_the_home_of_a_daemon_that_runs_is_named(homes: Path) -> None:
    assert advice(links.default_home()).startswith("start one")
    server = links.LinkServer(homes / "runs")
    assert advice(links.default_home()) == f"name the home of the daemon that runs: GOSSIPDP_HOME={homes / 'runs'}"
    server.close()
    assert advice(links.default_home()).startswith("start one")


def test_under_a_supervisor_nothing_is_to_be_started(homes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSIPDP_HOME", str(homes / "stopped"))
    assert not links.supervised(homes / "stopped")
    monkeypatch.setenv("GOSSIPDP_ATTEMPT", "0")
    assert links.supervised(homes / "stopped") and not links.supervised(homes / "runs")
    assert "supervisor starts it again" in advice(homes / "stopped") and str(homes / "stopped") in advice(
        homes / "stopped"
    )
