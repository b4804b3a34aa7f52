"""Makes the Grafana dashboard from `panels.toml`: `python docs/site/dashboard.py` writes it to peers/deploy/grafana.

The file is committed, and a test compares it with `text()`. Grafana adds its defaults when it loads it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).parents[2] / "peers" / "deploy" / "grafana" / "dashboards" / "gossipdp.json"
PANELS: Final = Path(__file__).with_name("panels.toml")
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
PEERS: Final = 'network=~"$network", instance=~"$instance"'
"""selects the chosen peers; for all of them both values are ".*", which also matches a target without the label"""
WIDTH: Final = 24
"""columns of a dashboard"""
HEIGHT: Final = 8
COLOURS: Final = {
    "healthy": "green",
    **dict.fromkeys(("degraded", "refused"), "red"),
    **dict.fromkeys(("leaving", "finishing", "joining", "starting", "idle", "alone"), "yellow"),
}
"""verdict -> colour, as in `gossipdp status`"""
OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    },
    "table": {"showHeader": True, "cellHeight": "sm"},
}
"""kind of panel -> its options"""


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana reads it."""
    return {
        "uid": "gossipdp-peers",
        "title": "gossipdp peers",
        "description": "Who is there, how exchanges go, whether replicas agree, what training loses.",
        "tags": ["gossipdp"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                _variable("network", "gossipdp_members"),
                _variable("instance", 'gossipdp_members{network=~"$network"}'),
            ]
        },
        "annotations": {"list": []},
        "panels": list(_placed(tomllib.loads(PANELS.read_text("utf-8"))["row"])),
    }


def text() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=2) + "\n"


def _variable(label: str, series: str) -> dict[str, Any]:
    """A choice among the values that these series have for a label."""
    return {
        "name": label,
        "label": label.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "query": {"qryType": 1, "query": f"label_values({series}, {label})", "refId": label},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _placed(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every row with its panels from left to right, each with its place and number."""
    number, top = 0, 0
    for row in rows:
        number += 1
        place = {"h": 1, "w": WIDTH, "x": 0, "y": top}
        yield {"id": number, "type": "row", "title": row["title"], "collapsed": False, "gridPos": place, "panels": []}
        top, left = top + 1, 0
        for panel in row["panel"]:
            number, width = number + 1, panel.get("width", WIDTH // 3)
            if left + width > WIDTH:
                top, left = top + HEIGHT, 0
            place = {"h": HEIGHT, "w": width, "x": left, "y": top}
            yield {"id": number, "gridPos": place, **_panel(panel)}
            left += width
        top += HEIGHT


def _panel(panel: dict[str, Any]) -> dict[str, Any]:
    kind = panel.get("kind", "timeseries")
    marks = [{"color": "green", "value": None}, *({"color": to, "value": at} for at, to in panel.get("marks", ()))]
    defaults: dict[str, Any] = {
        "unit": panel.get("unit", "none"),
        "color": {"mode": "thresholds" if kind == "stat" else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": marks},
    }
    if kind == "timeseries":
        defaults["custom"] = {"fillOpacity": 0, "lineWidth": 1, "showPoints": "auto", "spanNulls": False}
        if len(marks) > 1:
            defaults["custom"]["thresholdsStyle"] = {"mode": "line"}
        if panel.get("least") != "auto":
            defaults["min"] = 0
    return {
        "type": kind,
        "title": panel["title"],
        "description": panel["about"],
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": [_verdict_colours()] if kind == "table" else []},
        "options": OPTIONS[kind],
        "targets": [_target(index, kind, query) for index, query in enumerate(panel["queries"])],
        **({"transformations": [_verdict_columns()]} if kind == "table" else {}),
    }


def _target(index: int, kind: str, query: str | list[str]) -> dict[str, Any]:
    expression, legend = (query, "{{instance}}") if isinstance(query, str) else query
    return {
        "refId": chr(ord("A") + index),
        "datasource": SOURCE,
        "expr": expression.replace("PEERS", PEERS).replace("RATE", "[$__rate_interval]"),
        "legendFormat": legend,
        **({"format": "table", "instant": True} if kind == "table" else {"range": True}),
    }


def _verdict_columns() -> dict[str, Any]:
    hidden = dict.fromkeys(("Time", "Value", "__name__", "job"), True)
    order = {"network": 0, "instance": 1, "state": 2}
    return {"id": "organize", "options": {"excludeByName": hidden, "indexByName": order, "renameByName": {}}}


def _verdict_colours() -> dict[str, Any]:
    """The column `state` has the colour of the verdict."""
    mapped = {state: {"color": colour, "index": index} for index, (state, colour) in enumerate(COLOURS.items())}
    properties = [
        {"id": "custom.cellOptions", "value": {"type": "color-text"}},
        {"id": "mappings", "value": [{"type": "value", "options": mapped}]},
    ]
    return {"matcher": {"id": "byName", "options": "state"}, "properties": properties}


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
