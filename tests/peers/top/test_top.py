"""The live view: what keys change, what is drawn, and the command on a terminal."""

import re
from typing import Any

import pytest
from rich.console import Console

from peers.top.choice import Choice, keys, pressed, shown
from peers.top.view import View, line

IDS = ["aa" * 32, "bb" * 32, "cc" * 32]
MEMBERS: list[dict[str, Any]] = [
    {"name": "anna", "id": IDS[0], "me": True, "state": "alive", "trains": True, "round": 9, "loss": 2.5, "rtt": None},
    {"name": "bert", "id": IDS[1], "state": "alive", "trains": True, "round": 11, "loss": 2.25, "rtt": 0.05},
    {"name": "carl\x1b[31m[red]", "id": IDS[2], "state": "failed", "gone": 5.0, "round": None, "rtt": 0.1},
    {"name": "old", "id": "dd" * 32, "state": "left", "gone": 9999.0},
]
STATUS: dict[str, Any] = {
    "network": "tiny", "verdict": {"state": "healthy", "text": "healthy: 3 of 3 peers"}, "members": {"alive": 2},
    "round": 9, "loss": 2.5, "consensus_ratio": 1.6, "stall": 0.01, "uptime": 600.0, "received_bytes": 12e6,
    "sent_bytes": 11e6, "samples_per_second": 1234.5, "steps": 100, "samples": 3200,
    "recent_exchanges": [
        {"partner": IDS[1], "result": "done", "chunks": 8, "of": 8, "seconds": 0.4, "sent_bytes": 5e6,
         "received_bytes": 6e6, "ago": 4.2},
        {"partner": IDS[2], "result": "lost", "chunks": 0, "of": 8, "seconds": 2.0, "sent_bytes": 10,
         "received_bytes": 0, "ago": 64.0},
    ],
    "notices": ["GD-101 no peer answers \x1b[2J"],
}  # fmt: skip


START = Choice()


def drawn(choice: Choice = START, width: int = 80, height: int = 24, silent: str = "") -> list[str]:
    console = Console(width=width, height=height, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(View(STATUS, MEMBERS, silent).drawn(choice, width, height))
    return captured.get().splitlines()


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"s", ["s"]),
        (b"\x1b[A", ["up"]),
        (b"\x1bOB", ["down"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[15~", []),
        (b"/ab\r", ["/", "a", "b", "enter"]),
        (b"\x03", ["q"]),
        (b"\xc3\xa4", []),
    ],
)
def test_keys(data: bytes, found: list[str]) -> None:
    assert keys(data) == found


def typed(*pressed_keys: str, rows: int = 3) -> Choice:
    choice = Choice()
    for key in pressed_keys:
        choice = pressed(choice, key, rows)
    return choice


def test_choices() -> None:
    assert typed("down", "j", "j", "j").at == 2 and typed("down", "up", "k").at == 0
    assert typed("enter").opened and not typed("enter", "escape").opened
    assert typed("/", "b", "q", "delete", "enter") == Choice(wanted="b")
    assert typed("/", "b", "escape") == Choice() == typed("/", "b", "enter", "escape")
    assert typed("q").ended and typed(*"sssssss").sort == 0
    assert typed("down", rows=0).at == 0


def test_members_are_sorted_and_filtered__those_without_the_value_last() -> None:
    names = [row["name"][:4] for row in shown(typed("s"), MEMBERS[:3])]
    assert names == ["bert", "anna", "carl"]
    assert [row["name"] for row in shown(Choice(wanted="BER"), MEMBERS)] == ["bert"]
    assert [row["name"][:4] for row in shown(Choice(wanted="failed"), MEMBERS)] == ["carl"]


@pytest.mark.parametrize("width", [80, 160])
def test_one_screen(width: int) -> None:
    lines = drawn(width=width)
    text = "\n".join(lines)
    assert len(lines) <= 24 and max(map(len, lines)) <= width and "\x1b" not in text
    assert lines[0] == "tiny  healthy: 3 of 3 peers"
    assert lines[1].startswith("2 alive · round 9 · 38.6 steps/s · loss 2.500 · agreement 1.6 · exchange 4 s")
    assert "anna" in text and "old" not in text and "[red]" in text
    assert re.search("bert +done  8 of 8 chunks, 6MB in, 5MB out, 0.4 s", text)
    assert "mixed nothing" in text and "GD-101 no peer answers" in text
    assert lines[-1].startswith("s sort: name   / filter   j k move   Enter open   q quit")


def test_low_terminal__the_marked_member_is_on_the_screen() -> None:
    many = [MEMBERS[0] | {"name": f"h{number:02}", "id": f"{number:064x}"} for number in range(40)]
    console = Console(width=80, height=24, color_system=None)
    with console.capture() as captured:
        console.print(View({}, many).drawn(Choice(at=39), 80, 24))
    text = captured.get()
    assert len(text.splitlines()) <= 24 and "h39" in text and "h00" not in text and "more members)" in text


def test_one_member_and_the_filter_line() -> None:
    text = "\n".join(drawn(Choice(at=1, opened=True)))
    assert "round-trip time of pings from here" in text and "exchanges with it" in text and "mixed nothing" not in text
    assert any(each.startswith("filter: be_") for each in drawn(Choice(wanted="be", typing=True)))


def test_daemon_is_silent__said_above_the_last_look() -> None:
    lines = drawn(silent="the daemon of this home does not answer: nothing in 2 s")
    assert lines[0].startswith("the daemon of this home does not answer") and "bert" in "\n".join(lines)


def test_line_of_a_peer_that_has_nothing_yet() -> None:
    assert line({}) == ""
    assert line({"members": {"alive": 1}, "round": 0, "uptime": 3.0}) == "1 alive · round 0 · in 0B · out 0B · up 3 s"
    assert " · exchange 4 s ago · 2kB/s · stall 1.0% · in 12MB · " in line(STATUS, 2000.0)


@pytest.mark.parametrize(("width", "shown"), [(80, "…-0000bbbbbb"), (160, "ip-172-31-44-201-0000bbbbbb")])
def test_names_that_differ_at_their_ends__tell_exchanges_apart(width: int, shown: str) -> None:
    members = [{**row, "name": f"ip-172-31-44-201-0000{str(row['id'])[:6]}"} for row in MEMBERS]
    console = Console(width=width, height=24, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(View(STATUS, members, "").drawn(START, width, 24))
    (line,) = [line for line in captured.get().splitlines() if "8 of 8 chunks" in line]
    assert shown in line
