"""Operating systems other than Linux are refused by name, at `attach` and by every command."""

import sys

import pytest

import gossipdp
from gossipdp import launch
from gossipdp.errors import HardwareError, refuse_other_systems


@pytest.mark.parametrize(("system", "instead"), [("win32", "WSL2"), ("darwin", "Linux host")])
def test_other_systems_are_refused_with_what_serves_instead(system: str, instead: str) -> None:
    with pytest.raises(HardwareError, match="GD-510") as refused:
        refuse_other_systems(system)
    assert instead in str(refused.value) and system in str(refused.value)


def test_linux_is_not_refused() -> None:
    refuse_other_systems("linux")


@pytest.fixture
def on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refuse_other_systems, "__defaults__", ("win32",))
    monkeypatch.delenv("GOSSIPDP_OFF", raising=False)


@pytest.mark.usefixtures("on_windows")
def test_commands_end_with_the_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gossipdp", "up"])
    assert launch.main() == 7
    assert "GD-510" in capsys.readouterr().err


@pytest.mark.usefixtures("on_windows")
def test_attach_is_refused__and_training_alone_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HardwareError, match="GD-510"):
        _ = gossipdp.attach
    monkeypatch.setenv("GOSSIPDP_OFF", "1")
    assert callable(gossipdp.attach)
