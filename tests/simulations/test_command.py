"""`python -m simulations`: its options, its list and its exit codes."""

from pathlib import Path

import pytest

from simulations import __main__ as command
from simulations.main import SCENARIOS, Options


def test_options_are_handed_through(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, Options]] = []
    monkeypatch.setattr(command, "play", lambda name, options: seen.append((name, options)) or 1)
    given = ("--seed", "7", "--peers", "4", "--out", "x", "--no-picture", "--json", "--until-failure", "--seeds", "9")
    assert command.main(["churn", *given, "--shrink", "0", "--replay", "y"]) == 1
    options = Options(
        seed=7, peers=4, out=Path("x"), picture=False, as_json=True, until_failure=True, seeds=9, shrink=0.0,
        replay=Path("y"),
    )  # fmt: skip
    assert seen == [("churn", options)]
    assert command.main(["churn"]) == 1 and seen[1] == ("churn", Options())


def test_without_a_scenario_the_scenarios_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    told = capsys.readouterr().out
    assert len(told.splitlines()) >= 8 and f"partition    {SCENARIOS['partition'].question}" in told


def test_unknown_scenario_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["nonsense"]) == 2
    assert "no scenario 'nonsense'; there are chaos, churn" in capsys.readouterr().err
