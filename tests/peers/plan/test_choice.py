"""Rounds and settings that a plan chooses, and its advice, against a clock of plain arithmetic."""

from pathlib import Path

import pytest

from gossipdp.config_loading import load
from gossipdp.runtime.memory_need import MemoryPlan
from peers.home import presets
from peers.plan.advice import FAILURES, advice_for
from peers.plan.choice import memory, plan_for
from peers.plan.clock import WAYS
from peers.plan.show import settings_lines
from tests.peers.plan.networks import network, slow_links

ROOT = Path(__file__).parents[3]


def test_each_row_has_the_share_lost_and_bytes_of_its_round() -> None:
    made = plan_for(network(speeds="1,1,2,4", hosts="4"), slow_links(3.0, 2.0, 1.0), 0.1)
    ddp, local, diloco = (made.rows[title] for title in ("DDP, bf16", "local SGD", "DiLoCo, 4 bits"))
    # A step of 1 s and 1 s of waiting; the faster hosts compute for 1/2 and 1/4 s of the two.
    assert ddp.every == 1 and ddp.link == pytest.approx(0.5)
    assert ddp.lost == pytest.approx(1.0 - (0.5 + 0.5 + 0.25 + 0.125) / 4.0)
    assert ddp.bytes == pytest.approx(1e6 * 1800.0)
    assert local.link == pytest.approx(2.0 / 52.0) and local.round.steps == (50.0,) * 4
    # The median host has speed 1.5: 50 of its steps last as long as 33 of the slowest's.
    assert diloco.round.seconds == pytest.approx(35.0) and diloco.every == 50


def test_rounds_of_others_are_the_shortest_that_lose_no_more_than_is_accepted() -> None:
    made = plan_for(network(), slow_links(3.0, 20.0, 0.0), 0.05)
    assert {title: row.every for title, row in made.rows.items()} == {
        "gossip": 50,
        "DiLoCo, fp32": 380,
        "DiLoCo, 4 bits": 380,
        "DiLoCo, 4 bits, overlap": 50,
        "local SGD": 380,
        "DDP, bf16": 1,
    }
    assert made.rows["local SGD"].link == pytest.approx(0.05)
    assert plan_for(network(), slow_links(3.0, 20.0, 0.0), 0.2).rows["local SGD"].every == 80
    assert plan_for(network(), slow_links(3.0, 2000.0, 0.0), 0.05).rows["local SGD"].every == 1000


@pytest.mark.parametrize(
    ("exchange", "every", "fill"),
    [(3.0, 50, 0.06), (45.0, 50, 0.9), (45.5, 60, 45.5 / 60), (450.0, 500, 0.9), (9000.0, 1000, 9.0)],
)
def test_a_round_of_gossip_is_as_long_as_its_exchange_needs(exchange: float, every: int, fill: float) -> None:
    made = plan_for(network(), slow_links(exchange, 1.0, 99.0), 0.05)
    assert made.settings["exchange.every"] == every and made.fill == pytest.approx(fill)
    assert ("outer.momentum" in made.settings) is (fill >= 0.5)


@pytest.mark.parametrize(
    ("bandwidth", "latency", "window"), [("100Mbit", "50ms", 32), ("500Mbit", "50ms", 64), ("10Gbit", "100ms", 256)]
)
def test_window_keeps_four_crossings_of_chunks_in_flight(bandwidth: str, latency: str, window: int) -> None:
    # Chunks of a million parameters have 393 kB at 3 bits; four crossings of 50 ms at 500 Mbit/s carry 12.5 MB.
    there = network(parameters="7B", bandwidth=bandwidth, latency=latency)
    made = plan_for(there, slow_links(3.0, 1.0, 99.0), 0.05)
    assert made.settings["exchange.window"] == window
    assert (made.window > 256) is (bandwidth == "10Gbit")
    assert any("window: " in note.text for note in advice_for(made, "none").notes) is (bandwidth == "10Gbit")


def test_a_small_model_needs_no_more_chunks_in_flight_than_it_has() -> None:
    made = plan_for(network(parameters="10M", bandwidth="10Gbit", latency="1s"), slow_links(3.0, 1.0, 9.0), 0.05)
    assert made.window == 16


def test_lines_of_the_run_file_are_accepted_and_mark_what_differs() -> None:
    made = plan_for(network(), slow_links(60.0, 1.0, 99.0), 0.05)
    lines = settings_lines(made)
    read = load("\n".join(lines), presets=presets())
    assert (read.exchange.every, read.exchange.bits, read.momentum) == (70, 3, 0.4)
    assert [line.partition("# ")[2] for line in lines if "=" in line] == [
        "in place of 50",
        "the default",
        "the default",
        'in place of "auto"',
    ]


def test_memory_of_gossip_is_the_daemons_and_of_others_what_their_equations_keep() -> None:
    size = 10**9
    assert memory("gossip", size, 32) == MemoryPlan(window=32).need(size).total == pytest.approx(16.5e9, rel=0.01)
    assert memory("DDP, bf16", size, 32) == memory("local SGD", size, 32) == 4e9
    assert memory("DiLoCo, fp32", size, 32) == 12e9
    assert memory("DiLoCo, 4 bits", size, 32) == memory("DiLoCo, 4 bits, overlap", size, 32) == 12e9 + 1_015_625_000
    assert all(memory(title, size, 32) > 0 for title in WAYS)


@pytest.mark.parametrize(
    ("exchange", "collective", "ddp", "speeds", "failures", "use"),
    [
        (0.3, 1.0, 0.0, "1", "none", "ddp"),
        (0.3, 1.0, 0.05, "1", "none", "ddp"),
        (0.3, 1.0, 0.0, "1", "some", "ddp"),
        (0.3, 1.0, 0.0, "1", "churn", "gossip"),
        (0.3, 1.0, 0.0, "1,2,4", "none", "ddp"),
        (0.3, 1.0, 0.0, "1,5", "none", "either"),
        (3.0, 1.0, 0.3, "1", "none", "either"),
        (3.0, 1.0, 0.3, "1,2,4", "none", "gossip"),
        (3.0, 1.0, 0.3, "1", "some", "quorum"),
        (3.0, 1.0, 2.0, "1", "none", "gossip"),
        (3.0, 1.0, 2.0, "1", "some", "quorum"),
        (3.0, 9.0, 2.0, "1", "some", "gossip"),
        (99.0, 99.0, 99.0, "1", "none", "gossip"),
        (101.0, 99.0, 99.0, "1", "none", "long"),
        (901.0, 99.0, 99.0, "1", "none", "none"),
    ],
)
def test_recommendation_follows_the_pages(
    exchange: float, collective: float, ddp: float, speeds: str, failures: str, use: str
) -> None:
    made = plan_for(network(speeds=speeds), slow_links(exchange, collective, ddp), 0.05)
    advice = advice_for(made, failures)
    assert advice.use == use and advice.headline.endswith(".") and advice.reasons


def test_accepted_loss_moves_the_choice_of_ddp_only_as_far_as_it_is_ahead() -> None:
    uses = [advice_for(plan_for(network(), slow_links(3.0, 1.0, 0.25), share), "none").use for share in (0.05, 0.2)]
    assert uses == ["either", "ddp"], "it loses 20 %"
    assert advice_for(plan_for(network(), slow_links(3.0, 1.0, 4.0), 0.9), "none").use == "gossip", "it loses 80 %"


def test_every_reason_names_a_page_that_exists() -> None:
    pages, uses = set(), set()
    for exchange, ddp in ((0.3, 0.0), (0.3, 0.3), (3.0, 2.0), (40.0, 9.0), (300.0, 99.0), (9e3, 9e3)):
        for speeds in ("1", "1,2,4", "1,9"):
            for failures in FAILURES:
                made = plan_for(network(hosts="32", speeds=speeds), slow_links(exchange, 1.0, ddp), 0.05)
                advice = advice_for(made, failures, 0.09)
                pages |= {each.page for each in (*advice.reasons, *advice.notes)}
                uses |= {advice.use}
    assert len(uses) == 6 and len(pages) == 6
    assert all((ROOT / page).is_file() for page in pages)


def test_bytes_that_cost_money__twice_the_steps_cost_half() -> None:
    made = plan_for(network(), slow_links(3.0, 1.0, 9.0), 0.05)
    told = " ".join(note.text for note in advice_for(made, "none", 10.0).notes)
    assert made.rows["gossip"].bytes == pytest.approx(72e6) and "0.36 instead of 0.72 per hour" in told


@pytest.mark.parametrize(("ddp", "told"), [(0.0, True), (0.3, True), (9.0, False)])
def test_bytes_that_cost_money__those_of_ddp_are_told_where_it_may_be_used(ddp: float, told: bool) -> None:
    notes = advice_for(plan_for(network(), slow_links(3.0, 1.0, ddp), 0.05), "none", 10.0).notes
    assert any(note.text.startswith("The bytes of an hour of DDP cost") for note in notes) is told
