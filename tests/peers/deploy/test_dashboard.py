"""The Grafana dashboard: it is as its panels say, every panel can be read, and Grafana finds it."""

import itertools
import json

import yaml

from gossipdp.runtime.observability.health import FAR, MOST_STALL, STATES, WIDE
from gossipdp.runtime.observability.vital_signs import QUIET_ROUNDS
from tests.peers.deploy.queries import DASHBOARD, DEPLOY, panels, rules
from tests.peers.deploy.test_alerts import threshold
from tests.site_code import load

GRAFANA = DEPLOY / "grafana"
made = load("dashboard")


def test_the_file_is_what_the_panels_make() -> None:
    assert DASHBOARD == made.FILE
    assert made.text() == DASHBOARD.read_text("utf-8"), "run: python docs/site/dashboard.py"


def test_every_panel_has_title_description_unit_and_data_source() -> None:
    titles = [panel["title"] for panel in panels()]
    assert len(set(titles)) == len(titles) and 20 <= len(titles) <= 30
    units = {"none", "ops", "s", "percentunit", "Bps", "bytes"}
    for panel in panels():
        assert panel["description"].endswith(".") and panel["fieldConfig"]["defaults"]["unit"] in units
        source = {"type": "prometheus", "uid": "${datasource}"}
        assert all(each["datasource"] == source for each in (panel, *panel["targets"]))


def test_rates_have_a_unit_of_time_and_shares_are_shown_as_such() -> None:
    units = {panel["title"]: panel["fieldConfig"]["defaults"]["unit"] for panel in panels()}
    for panel in panels():
        for target in panel["targets"]:
            if "_bytes_total" in target["expr"]:
                assert units[panel["title"]] == ("Bps" if "rate(" in target["expr"] else "percentunit")
            elif "timestamp_seconds" in target["expr"] or "rtt_seconds" in target["expr"]:
                assert units[panel["title"]] == "s"


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    every = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    places = [panel["gridPos"] for panel in every]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in itertools.combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below


def test_marks_are_the_thresholds_of_verdict_and_alerts() -> None:
    marks = {
        panel["title"]: [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"][1:]]
        for panel in panels()
    }
    assert marks["Agreement: consensus ratio"] == [WIDE, FAR]
    assert marks["Rounds since an exchange"] == [QUIET_ROUNDS]
    assert marks["Time lost"] == [MOST_STALL]
    assert marks["Open files of the daemon"] == [threshold(rules()["GossipdpDescriptorsShort"]["expr"])]


def test_verdicts_have_the_colours_of_status() -> None:
    assert {kind.name: kind.colour for kind in STATES} == made.COLOURS


def test_provisioning_names_a_folder_and_a_data_source_for_the_variable() -> None:
    provider = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "gossipdp.yml").read_text("utf-8"))
    [folder] = provider["providers"]
    assert provider["apiVersion"] == 1 and folder["type"] == "file" and folder["options"]["path"].startswith("/")
    sources = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "prometheus.yml").read_text("utf-8"))
    assert [source["type"] for source in sources["datasources"]] == ["prometheus"]
    listed = json.loads(DASHBOARD.read_text("utf-8"))["templating"]["list"]
    assert {"name": "datasource", "type": "datasource", "query": "prometheus"}.items() <= listed[0].items()
