"""The alert rules and the dashboard that are shipped, and what their expressions name."""

import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import yaml

DEPLOY = Path(str(resources.files("peers"))) / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"
RULE_TESTS = sorted((DEPLOY / "prometheus" / "tests").glob("*.yml"))
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "gossipdp.json"
WORDS = {"and", "or", "unless", "by", "without", "on", "ignoring", "offset"}
"""of PromQL"""


class Selector(NamedTuple):
    """A metric with the labels that it is selected by, each with the value or pattern."""

    metric: str
    labels: tuple[tuple[str, str], ...]


def rules() -> dict[str, dict[str, Any]]:
    """Name of an alert -> its rule."""
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def panels() -> list[dict[str, Any]]:
    """The panels that show something."""
    return [panel for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"] if panel["type"] != "row"]


def shown() -> dict[str, list[str]]:
    """Title of a panel -> its expressions, with all peers chosen, as Grafana sends them."""
    values = {"$network": ".*", "$instance": ".*", "$__rate_interval": "1m"}

    def filled(expression: str) -> str:
        for variable, value in values.items():
            expression = expression.replace(variable, value)
        assert "$" not in expression
        return expression

    return {panel["title"]: [filled(target["expr"]) for target in panel["targets"]] for panel in panels()}


def variables() -> dict[str, str]:
    """Name of a variable of the dashboard -> its query."""
    listed = json.loads(DASHBOARD.read_text("utf-8"))["templating"]["list"]
    return {each["name"]: each["query"]["query"] for each in listed if each["type"] == "query"}


def selectors(expression: str) -> Iterator[Selector]:
    """Every metric that an expression reads."""
    for name, braces in re.findall(r"(?<![\w.$])([a-zA-Z_:][\w:]*)(?:\{([^}]*)\})?(?!\w|\s*\()", _bare(expression)):
        if name not in WORDS:
            yield Selector(name, tuple(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"', braces)))


def grouping(expression: str) -> set[str]:
    """The labels that an expression groups or matches by."""
    lists = re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", expression)
    return {label.strip() for each in lists for label in each.split(",") if label.strip()}


def _bare(expression: str) -> str:
    """Without lists of labels and without ranges."""
    return re.sub(r"\b(?:by|without|on|ignoring)\s*\([^)]*\)|\[[^\]]*\]", " ", expression)
