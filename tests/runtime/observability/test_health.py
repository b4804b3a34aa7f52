"""The verdict on a peer, from plain values."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from gossipdp.error_codes import EXITS
from gossipdp.protocol.course.table import Reason
from gossipdp.runtime.network.dial_causes import Cause
from gossipdp.runtime.observability.health import STATES, Signs, Silent, agreement, judge, spoken

HEALTHY = Signs(
    training=True, idle=math.inf, live=3, train=2, partner="b", exchanged=12.0, quiet=12.0, still=3.0, patience=180.0,
    round_seconds=30.0, ratio=1.5, stall=0.003,
)  # fmt: skip
FIREWALL = "open TCP port 4710 of that host in its firewall"
DROPS = Silent(
    "1.2.3.4:4710", Cause("GD-101", "timed out", "no answer in 8 s, as if a firewall drops the packets"), FIREWALL
)
REFUSES = Silent("1.2.3.5:4710", Cause("GD-101", "refused"), "start a peer there")
TIMED_OUT = Silent("1.2.3.4:4710", DROPS.cause)
BANNED = Silent("1.2.3.4:4710", Cause("GD-204", "does not let this peer in"))


@pytest.mark.parametrize(
    ("signs", "text"),
    [
        (HEALTHY, "healthy: 3 of 3 peers, last exchange 12 s ago with b, agreement normal, training waits 0.3 %"),
        (
            replace(HEALTHY, failed=(("c", 240.0), ("d", 7200.0)), exchanged=math.inf, ratio=math.nan, stall=math.nan),
            "healthy: 3 of 4 peers (c failed 4 min ago), no exchange yet, agreement unknown yet",
        ),
        (
            replace(HEALTHY, quiet=240.0, silent=(TIMED_OUT,)),
            "degraded: no exchange for 4 min; no peer answers at 1.2.3.4:4710 (timed out)",
        ),
        (
            replace(HEALTHY, quiet=240.0, fruitless=(("busy", 9), ("lost", 1))),
            "degraded: no exchange for 4 min; exchanges without a result: busy (9), lost (1)",
        ),
        (
            replace(HEALTHY, quiet=240.0, still=230.0),
            "degraded: no exchange for 4 min; this host's training has made no round for 4 min,"
            " and one usually takes 30 s",
        ),
        (
            replace(HEALTHY, still=230.0),
            "degraded: this host's training has made no round for 4 min, and one usually takes 30 s",
        ),
        (
            replace(HEALTHY, still=119.0, patience=100.0),
            "healthy: 3 of 3 peers, last exchange 12 s ago with b, agreement normal, training waits 0.3 %",
        ),
        (
            replace(HEALTHY, live=1, train=0, failed=(("c", 180.0),), silent=(TIMED_OUT,)),
            "degraded: no other member is alive (c failed 3 min ago); no peer answers at 1.2.3.4:4710 (timed out)",
        ),
        (
            replace(HEALTHY, training=False, starting=True, ended=3),
            "degraded: training has ended 3 times within 10 min, and is started again: its output says why",
        ),
        (
            replace(HEALTHY, ratio=4.0, all_far=True),
            "degraded: replicas are far apart: 4.0 outer steps, about 1 is usual; a smaller [outer] momentum or"
            " [exchange] every brings them together",
        ),
        (
            replace(HEALTHY, ratio=4.0),
            "degraded: replicas are far apart: 4.0 outer steps, about 1 is usual; one host alone may have diverged:"
            " compare the losses in `gossipdp members`",
        ),
        (
            replace(HEALTHY, training=False, idle=30.0, ratio=4.0, all_far=True),
            "idle: no training process has been attached for 30 s: this peer keeps the model and exchanges nothing",
        ),
        (
            replace(HEALTHY, ratio=math.nan, unseen=2),
            "healthy: 3 of 3 peers, last exchange 12 s ago with b, agreement unknown yet, training waits 0.3 %",
        ),
        (
            replace(HEALTHY, ratio=math.nan, unseen=3),
            "degraded: agreement is unknown: the grids of the last 3 exchanges were too coarse to show a distance, the"
            " last one with b",
        ),
        (replace(HEALTHY, stall=0.25), "degraded: training spends 25% of its time in gossipdp"),
        (
            replace(HEALTHY, second=(34, 12)),
            "degraded: a second training process (34) is turned away: process 12 is attached (GD-503)",
        ),
        (replace(HEALTHY, refused=("nan", 2)), "degraded: training's last 2 snapshots were not used: nan"),
        (
            replace(HEALTHY, resyncing=Reason.LAG, transfer="3 of 12 chunks from ab"),
            "degraded: the model is fetched again, because this peer has fallen behind: 3 of 12 chunks from ab",
        ),
        (
            replace(HEALTHY, live=1, train=0),
            "alone: no other member; training goes on; `gossipdp invite` lets another host in",
        ),
        (replace(HEALTHY, train=0, exchanged=300.0), "alone: 2 other members, but none of them trains"),
        (
            Signs(live=3, train=2, idle=300.0),
            "idle: no training process has been attached for 5 min: this peer keeps the model and exchanges nothing",
        ),
        (
            Signs(joining=True, founds=True),
            "idle: the network has no model yet: the first training process of this host gives it one",
        ),
        (Signs(joining=True), "joining: no member has answered yet"),
        (Signs(joining=True, silent=(TIMED_OUT,)), "joining: no peer answers at 1.2.3.4:4710 (timed out)"),
        (Signs(joining=True, live=2), "joining: 1 other member met, but no model has come yet"),
        (
            Signs(joining=True, live=2, transfer="3 of 12 chunks from ab"),
            "joining: receiving the model: 3 of 12 chunks from ab",
        ),
        (
            Signs(joining=True, resumes=700, listens=30.0),
            "joining: no member has answered yet; this host's checkpoint of step 700 is used unless a member has a"
            " later model; members have up to 30 s to say so",
        ),
        (
            Signs(joining=True, unmet=70.0, silent=(DROPS, REFUSES)),
            "degraded: not yet in the network after 70 s; no peer answers at 1.2.3.4:4710 (timed out);"
            f" no peer answers at 1.2.3.5:4710 (refused); do: {FIREWALL}; do: start a peer there",
        ),
        (
            Signs(joining=True, unmet=70.0),
            "degraded: not yet in the network after 70 s; no address of a member is known, or none has answered yet;"
            " do: name a member: --seed HOST:PORT, or join with its invite",
        ),
        (
            Signs(joining=True, unmet=59.0, silent=(REFUSES,)),
            "joining: no peer answers at 1.2.3.5:4710 (refused)",
        ),
        (
            Signs(joining=True, founds=True, unmet=70.0, starting=True),
            "starting: the training command starts and has not attached yet; importing torch takes some seconds",
        ),
        (
            Signs(joining=True, founds=True, unmet=70.0),
            "idle: the network has no model yet: the first training process of this host gives it one",
        ),
        (
            replace(HEALTHY, live=1, train=0, unmet=70.0, silent=(REFUSES,)),
            "degraded: no member met for 70 s; no peer answers at 1.2.3.5:4710 (refused); do: start a peer there",
        ),
        (
            replace(HEALTHY, live=1, train=0, unmet=360.0, dialled=("[fd00::5]:4711", "10.0.0.5:4711")),
            "alone: no other member for 6 min; training goes on; `gossipdp invite` lets another host in; the invite"
            " names [fd00::5]:4711, 10.0.0.5:4711: from another host `nc -vz fd00::5 4711` must succeed"
            " (docs/networking)",
        ),
        (
            replace(HEALTHY, live=1, train=0, unmet=360.0, dialled=("127.0.0.1:4710",)),
            "alone: no other member for 6 min; training goes on; `gossipdp invite` lets another host in; the invite"
            " names only 127.0.0.1:4710, which no other host can dial: see --advertise (docs/networking)",
        ),
        (
            replace(HEALTHY, live=1, train=0, unmet=360.0),
            "alone: no other member for 6 min; training goes on; `gossipdp invite` lets another host in; no other host"
            " can dial this one, so none can join by its invite (docs/networking)",
        ),
        (
            Signs(joining=True, silent=(BANNED,)),
            "refused: GD-204 1.2.3.4:4710: does not let this peer in",
        ),
        (replace(HEALTHY, leaving=True, saving=True), "leaving: the last checkpoint is being written"),
    ],
)
def test_verdict(signs: Signs, text: str) -> None:
    state, said, causes, _ = judge(signs)
    assert said == text and said.startswith(f"{state}: ") and "\n" not in said
    assert (causes == ()) == (state == "healthy") and all(cause in said for cause in causes)


def test_several_troubles_are_all_told() -> None:
    verdict = judge(replace(HEALTHY, quiet=240.0, ratio=3.9, unsaved="no space left"))
    assert verdict.state == "degraded" and len(verdict.causes) == 3


def test_sync_training_waits_by_choice() -> None:
    assert judge(replace(HEALTHY, stall=0.25, sync=True)).state == "healthy"


@pytest.mark.parametrize("rounds", [2.0, 300.0])
def test_patience_decides_how_long_a_peer_may_be_quiet(rounds: float) -> None:
    patient = replace(HEALTHY, patience=4 * rounds + 20.0)
    assert judge(replace(patient, quiet=4 * rounds)).state == "healthy"
    assert judge(replace(patient, quiet=5 * rounds + 20.0)).state == "degraded"


def test_each_state_has_its_exit_code_and_zero_is_healthy_alone() -> None:
    codes = {kind.name: kind.exit_code for kind in STATES}
    assert len(set(codes.values())) == len(STATES) and 4 not in codes.values()
    assert [name for name, code in codes.items() if code == 0] == ["healthy"]
    assert {name for name, code in codes.items() if 0 < code < 10} == {"degraded", "refused"}


def test_the_operators_page_and_the_exit_codes_name_each_state() -> None:
    page = (Path(__file__).parents[3] / "docs" / "operate.md").read_text()
    for kind in STATES:
        assert f"\n| {kind.name} | {kind.exit_code} | " in page
        assert kind.exit_code in (0, 5) or f"`status --check`: {kind.name}" in EXITS[kind.exit_code]
    order = ", ".join(kind.name for kind in STATES[:-1])
    assert order in " ".join(page.split())


def test_agreement_in_words() -> None:
    words = [agreement(ratio) for ratio in (math.nan, 1.4, 1.8, 3.5)]
    assert words == ["unknown yet", "normal", "normal", "wide"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (119.0, "119 s"), (240.0, "4 min"), (10_800.0, "3 h"), (259_200.0, "3 days")],
)
def test_times_in_words(seconds: float, text: str) -> None:
    assert spoken(seconds) == text
