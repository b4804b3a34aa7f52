"""The alert rules: promtool accepts them, each fires when it should, and none contradicts the peer's own verdict."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gossipdp.error_codes import CODES
from gossipdp.runtime.observability.health import FAR, GONE, MOST_STALL, STATES, WIDE
from gossipdp.runtime.observability.metric_table import FAMILIES
from gossipdp.runtime.observability.vital_signs import QUIET_ROUNDS
from peers.cli import cli
from tests.peers.deploy.queries import DEPLOY, RULE_TESTS, RULES, rules, selectors

ALERTS = rules()
LABEL = re.compile(r"\{\{ \$labels\.(\w+) \}\}")
KINDS = {kind.name: kind for kind in STATES}


def promtool(*arguments: str | Path) -> tuple[int, str]:
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.needs("promtool")
def test_promtool_accepts_rules_scrape_settings_and_targets() -> None:
    code, said = promtool("check", "config", "--lint-fatal", DEPLOY / "prometheus" / "prometheus.yml")
    assert code == 0, said
    assert f"SUCCESS: {len(ALERTS)} rules found" in said


def cases(file: Path) -> list[dict[str, Any]]:
    return yaml.safe_load(file.read_text("utf-8"))["tests"]


def fired(case: dict[str, Any]) -> list[tuple[str, str]]:
    """Time and alert of all that fires in a case."""
    return [
        (check["eval_time"], re.search(r'alertname="(\w+)"', sample["labels"])[1])  # type: ignore[index]
        for check in case["promql_expr_test"]
        for sample in check["exp_samples"]
    ]


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("file", RULE_TESTS, ids=lambda file: file.stem)
def test_alerts_fire_when_they_should(file: Path) -> None:
    code, said = promtool("test", "rules", file)
    assert code == 0, said


def test_every_alert_has_a_case_in_which_it_fires_and_a_time_at_which_nothing_does() -> None:
    every = [case for file in RULE_TESTS for case in cases(file)]
    assert {alert for case in every for _, alert in fired(case)} == set(ALERTS)
    for case in every:
        assert any(not check["exp_samples"] for check in case["promql_expr_test"]), case["name"]
        names = {series["series"] for series in case["input_series"]}
        alone = {"a member fails", "a healthy peer"}  # these compare times
        assert any('instance="b"' in name for name in names) or case["name"].startswith(tuple(alone)), case["name"]


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("file", RULE_TESTS, ids=lambda file: file.stem)
def test_descriptions_are_whole_sentences_with_instance_and_value(file: Path, tmp_path: Path) -> None:
    """promtool prints the texts of alerts that it does not expect."""
    wanted = [
        {"interval": case["interval"], "input_series": case["input_series"], "alert_rule_test": unexpected}
        for case in cases(file)
        if (unexpected := [{"eval_time": at, "alertname": name, "exp_alerts": []} for at, name in fired(case)])
    ]
    asked = tmp_path / "asked.yml"
    asked.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": wanted}))
    _, said = promtool("test", "rules", asked)
    pattern = r'Labels:\{alertname="(\w+)".*\n\s*Annotations:\{description="([^"]*)", runbook=".*", summary="([^"]*)"\}'
    texts = re.findall(pattern, said)
    assert {name for name, _, _ in texts} == {name for case in cases(file) for _, name in fired(case)}
    for name, text, summary in texts:
        assert re.fullmatch(r"[A-Z][^{}<>]*\.", summary), (name, summary)
        assert "code" not in LABEL.findall(ALERTS[name]["annotations"]["summary"]) or re.search(r"\bGD-\d+", summary)
        assert re.fullmatch(r"[A-Z][^{}<>]*\.", text) and "%!" not in text, (name, text)
        assert re.search(r"\b(a|b|tiny)\b", text), (name, text)
        if "$value" in ALERTS[name]["annotations"]["description"]:
            assert re.search(r"\d", text), (name, text)


@pytest.mark.parametrize("name", ALERTS)
def test_alert_has_severity_texts_and_a_runbook_that_names_something_to_do(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    texts = rule["annotations"]
    assert list(texts) == ["summary", "description", "runbook"]
    # Alerts are sorted by their summaries: no value, and only labels that the metric has on every host.
    metric = next(selectors(rule["expr"])).metric.removeprefix("gossipdp_")
    always = {label for family in FAMILIES if family.name == metric for label in family.labels}
    assert "$" not in LABEL.sub("", texts["summary"]) and set(LABEL.findall(texts["summary"])) <= always
    assert "`" in texts["runbook"] or "HOME/log/" in texts["runbook"]
    assert set(re.findall(r"GD-\d+", texts["runbook"])) <= set(CODES)
    assert set(re.findall(r"`gossipdp (\w+)", texts["runbook"])) <= set(cli.commands)
    states = "gossipdp_verdict" in rule["expr"].partition(" ")[0] or rule["expr"].startswith("up{")
    assert states or "$value" in texts["description"], "an alert that is no plain state tells its value"


@pytest.mark.parametrize("name", ALERTS)
def test_alert_that_wants_attention_holds_only_in_a_red_verdict_if_it_asks_for_one(name: str) -> None:
    expression = ALERTS[name]["expr"].partition(" unless ")[0] if name == "GossipdpGpuIdle" else ALERTS[name]["expr"]
    asked = {dict(labels)["state"] for metric, labels in selectors(expression) if metric == "gossipdp_verdict"}
    wrong = ALERTS[name]["labels"]["severity"] != "info"
    assert all((KINDS[state].colour == "red") == wrong for state in asked)


def test_every_state_that_wants_attention_has_an_alert() -> None:
    bare = {rule["expr"] for rule in ALERTS.values()}
    red = [kind.name for kind in STATES if kind.colour == "red"]
    assert red and {f'gossipdp_verdict{{state="{state}"}} == 1' for state in red} <= bare


def test_a_notice_is_told_with_its_code() -> None:
    assert LABEL.findall(ALERTS["GossipdpNotice"]["annotations"]["summary"]) == ["code"]


def test_scrapes_in_vain_may_have_other_causes_than_a_dead_daemon() -> None:
    """Where large packets are lost, members reach a daemon and Prometheus gets no page of it."""
    texts = ALERTS["GossipdpPeerDown"]["annotations"]
    assert "Prometheus" in texts["summary"] and "does not answer" not in texts["summary"]
    assert "`gossipdp doctor" in texts["runbook"] and "largest packet" in texts["runbook"]


def threshold(text: str) -> float:
    return float(re.search(r">=? ([\d.]+)", text)[1])  # type: ignore[index]


def test_thresholds_are_those_of_the_verdict() -> None:
    wanted = {
        "GossipdpTrainingWaits": MOST_STALL,
        "GossipdpReplicasFarApart": FAR,
        "GossipdpReplicasDrift": WIDE,
        "GossipdpNoExchange": QUIET_ROUNDS,
    }
    assert {name: threshold(ALERTS[name]["expr"]) for name in wanted} == pytest.approx(wanted)
    assert GONE == 3600 and "[1h]" in ALERTS["GossipdpMemberLost"]["expr"]
