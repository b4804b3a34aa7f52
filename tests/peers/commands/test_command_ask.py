"""Commands that ask the daemon, the tables they print, and `gossipdp top`."""

import json
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gossipdp.runtime.observability.health import STATES
from peers import control, tables
from tests.peers.commands.running import Run

ROWS = [
    {
        "name": "host1", "id": "ab" * 32, "state": "alive", "address": "10.0.0.1:4710", "path": "direct", "rtt": 0.0123,
        "known": 42.0, "round": 41, "samples_per_second": 1234.5, "lag": 0, "sent": 1_500_000, "received": 2_000,
        "last_exchange": 3.2, "strikes": 0, "loss": 1.68341, "eval_loss": 1.7, "version": "0.1.0", "protocol": 4,
    },
    {"name": "host2\x1b[31m[red]", "id": "cd" * 32, "state": "failed", "rtt": None},
]  # fmt: skip


def test_members_as_text_and_json(gossipdp: Run, answering: Any, tmp_path: Path) -> None:
    answering(tmp_path, {"members": {"members": ROWS}})
    lines = gossipdp("members", "--home", tmp_path).out.splitlines()
    assert lines[0].split() == [column.title for column in tables.MEMBER_COLUMNS]
    assert lines[1].split() == (
        [
            "host1",
            "abababab",
            "alive",
            "10.0.0.1:4710",
            "direct",
            "12.3ms",
            "42s",
            "41",
            "1.23k",
            "1.683",
            "1.7",
            "0",
            "2k",
            "1.5M",
            "3s",
            "0",
            "0.1.0",
            "4",
        ]
    )
    assert lines[2].split() == ["host2?[31m[red]", "cdcdcdcd", "failed", *["-"] * 15]
    assert json.loads(gossipdp("members", "--json", "--home", tmp_path).out) == ROWS


def test_members_that_are_gone_for_long_are_hidden_and_counted(gossipdp: Run, answering: Any, tmp_path: Path) -> None:
    gone = [{"name": f"gone{seconds}", "state": "failed", "gone": seconds} for seconds in (30, 3599, 3601, 80_000)]
    answering(tmp_path, {"members": {"members": [*ROWS, *gone]}})
    shown, everything = (
        gossipdp("members", "--home", tmp_path).out,
        gossipdp("members", "--all", "--home", tmp_path).out,
    )
    assert [f"gone{seconds}" in shown for seconds in (30, 3599, 3601, 80_000)] == [True, True, False, False]
    assert shown.endswith("\n(2 that left or failed over an hour ago: --all lists them)\n")
    assert "gone80000" in everything and "--all" not in everything
    assert len(json.loads(gossipdp("members", "--json", "--home", tmp_path).out)) == 6


def test_help_of_members_explains_every_column(gossipdp: Run) -> None:
    out = gossipdp("members", "--help").out
    assert all(column.meaning for column in tables.MEMBER_COLUMNS)
    assert all(re.search(rf"^  {re.escape(column.title)} {{2,}}\S", out, re.M) for column in tables.MEMBER_COLUMNS)
    assert all(len(line) <= 80 for line in out.splitlines())


def test_members_expect_counts_the_living(gossipdp: Run, answering: Any, tmp_path: Path) -> None:
    answering(tmp_path, {"members": {"members": ROWS}})
    assert gossipdp("members", "--expect", "1", "--home", tmp_path).code == 0
    done = gossipdp("members", "--expect", "2", "--home", tmp_path)
    assert done.code == 4 and done.out
    assert done.err.startswith("GD-107 fewer members than expected\n  seen: 1 alive of 2\n  do:   ")


def test_status_copes_with_what_is_not_there(gossipdp: Run, answering: Any, tmp_path: Path) -> None:
    verdict = {"state": "alone", "text": "alone: no other member", "causes": ["no other member"]}
    answers = {"verdict": verdict, "name": "host1", "state": "ready", "members": {"alive": 3, "failed": 1},
               "loss": None, "uptime": 3725, "sent_bytes": 12_345_678, "notices": ["GD-401 no partner"],
               "do": {"GD-401": "look"}}  # fmt: skip
    answering(tmp_path, {"status": answers})
    out = gossipdp("status", "--home", tmp_path).out
    assert out.startswith("alone: no other member\n\npeer ")
    shown = dict(re.findall(r"^(\S[\w ]*?) {2,}(.*)$", out, re.M))
    assert shown["peer"] == "host1" and shown["members"] == "alive 3, failed 1" and shown["uptime"] == "1h 2m"
    assert shown["loss"] == "-" and shown["round"] == "-" and shown["sent"] == "12.3MB"
    assert out.endswith("\nGD-401 no partner\n\nGD-401: look\n") and "peer.report" not in out
    assert json.loads(gossipdp("status", "--json", "--home", tmp_path).out) == answers


@pytest.mark.parametrize(
    ("voices", "told"),
    [
        ({"all": True, "proven": 0}, "all, because no member has been known for long"),
        ({"all": False, "proven": 2}, "2 known for long"),
    ],
)
def test_status_says_whose_words_count(
    gossipdp: Run, answering: Any, tmp_path: Path, voices: dict[str, Any], told: str
) -> None:
    answering(tmp_path, {"status": {"voices": voices}})
    assert re.search(rf"^voices +{told}$", gossipdp("status", "--home", tmp_path).out, re.M)


def test_status_of_a_training_that_reports_no_loss_says_how_to(gossipdp: Run, answering: Any, tmp_path: Path) -> None:
    answering(tmp_path, {"status": {"training": "attached", "loss": None}})
    assert "peer.report(loss=...)" in gossipdp("status", "--home", tmp_path).out


@pytest.mark.parametrize(("started", "code"), [(True, 0), (False, 8)])
def test_checkpoint_save_asks_the_daemon(
    gossipdp: Run, answering: Any, tmp_path: Path, started: bool, code: int
) -> None:
    answering(tmp_path, {"checkpoint": {"saved": "/h/checkpoints/checkpoint-00000001" if started else ""}})
    done = gossipdp("checkpoint", "save", "--home", tmp_path)
    assert done.code == code and (done.out if started else done.err).startswith("saved /h/" if started else "GD-602 ")


def test_leave_returns_when_the_daemon_is_gone(gossipdp: Run, answering: Any, tmp_path: Path) -> None:
    """`up` may follow at once."""
    answering(tmp_path, {"leave": {"leaving": True}})
    assert gossipdp("--home", tmp_path, "leave").out == "leaving\n"
    assert not control.runs(tmp_path)


def test_an_invite_of_a_running_daemon_has_the_address_it_found(gossipdp: Run, answering: Any, founder: Path) -> None:
    answering(founder, {"invite": {"path": str(founder / "invite"), "seeds": ["192.0.2.7:4711"]}})
    assert "192.0.2.7:4711" in gossipdp("invite", "--home", founder).out


def test_a_narrow_terminal_gets_the_columns_that_matter(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    tables.print_table(tables.MEMBER_COLUMNS, ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert {"name", "id", "state", "path", "round", "samples/s", "loss", "eval", "last"} <= set(lines[0].split())
    assert "host2?[31m[red]" in lines[2], "a name is text, never markup"


@pytest.mark.parametrize(
    ("addresses", "why", "row"),
    [
        (["10.0.0.1:4710", "[::1]:4710"], "as configured", "10.0.0.1:4710, [::1]:4710 (as configured)"),
        (
            [],
            "members tried 10.0.0.1:4710 in vain",
            "none, this peer only dials out (members tried 10.0.0.1:4710 in vain)",
        ),
        ([], "", "none, this peer only dials out"),
    ],
)
def test_row_of_the_address__with_why_it_is_there_or_nowhere(
    gossipdp: Run, answering: Any, tmp_path: Path, addresses: list[str], why: str, row: str
) -> None:
    answering(tmp_path, {"status": {"verdict": {}, "addresses": addresses, "address_why": why}})
    out = gossipdp("status", "--home", tmp_path).out
    assert re.search(rf"^address +{re.escape(row)}$", out, re.M) and "chosen as" not in out


def on_a_terminal(script: str) -> list[str]:
    """The lines that a Python script prints to a terminal of 80 columns, without colours."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    variables = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    variables |= {"NO_COLOR": "1", "TERM": "xterm"}
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        subprocess.run([sys.executable, "-c", script], check=True, stdout=theirs, env=variables)
        os.close(theirs)
        said = terminal.read(1 << 16).decode()
    return re.sub(r"\x1b\[[\d;]*m", "", said).splitlines()


def test_status_on_a_terminal_of_80_columns__long_values_are_wrapped_under_their_column() -> None:
    answer = {
        "name": "host1", "addresses": [], "exchanges": {"done": 12_345, "cut": 678, "lost": 90, "refused": 12_345_678},
        "notices": ["GD-101 203.0.113.7:4710: no peer answers there: 203.0.113.7:4710 timed out: no answer in 8 s"],
        "do": {"GD-101": "open TCP port 4710 of that host, and check its address with `gossipdp status` on that host"},
        "address_why": "members tried 203.0.113.7:4710 in vain", "training": "attached",
    }  # fmt: skip
    lines = on_a_terminal(f"from peers.commands import ask\nask._show({answer!r})\n")
    assert max(map(len, lines)) <= 80
    at = next(number for number, line in enumerate(lines) if line.startswith("address "))
    under = lines[at + 1]
    assert lines[at].index("none, this peer") == len(under) - len(under.lstrip()) and under.endswith("in vain)")


def test_members_that_do_not_train_are_idle() -> None:
    told = [tables.member_told({"state": state, "trains": trains})["state"] for state, trains in [
        ("alive", True), ("alive", None), ("alive", False), ("failed", False)
    ]]  # fmt: skip
    assert told == ["alive", "alive", "idle", "failed"]


@pytest.mark.parametrize("length", [5, 25, 39])
def test_members_on_a_terminal_of_80_columns__the_columns_that_matter_and_a_line_a_member(length: int) -> None:
    pytest.importorskip("rich")
    names = ["a" * (length - 1) + str(number) for number in range(2)]
    busy = ROWS[0] | {"path": "outbound-only", "last_exchange": 3599.0, "round": 123_456, "version": "0.1.0.dev123"}
    lines = on_a_terminal(
        "from peers import tables\n"
        f"tables.print_table(tables.MEMBER_COLUMNS, [{busy!r} | {{'name': name}} for name in {names!r}])\n"
    )
    head, *rows, hint = lines
    assert {"name", "state", "path", "round", "loss", "last"} <= set(head.split())
    assert len(rows) == 2 and "more columns" in hint and max(map(len, lines)) <= 80
    assert [row.split()[0][-1] for row in rows] == ["0", "1"], "the ends of long names differ"
    assert all({"outbound-only", "123456", "1.683", "59m"} <= set(row.split()) for row in rows)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (7.25, "7.25"), (999, "999"), (1000, "1k"), (1_234_567, "1.23M"), (2.5e13, "25T")]
)
def test_quantities(value: float, text: str) -> None:
    assert tables.quantity(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.25, "250ms"), (59, "59s"), (61, "1m 1s"), (90_000, "1d 1h")])
def test_durations(value: float, text: str) -> None:
    assert tables.duration(value) == text


@pytest.mark.parametrize(
    ("state", "code"), [("healthy", 0), ("degraded", 1), ("refused", 5), ("alone", 10), ("joining", 11), ("?", 1)]
)
def test_status_check_exits_by_the_verdict(
    gossipdp: Run, answering: Any, tmp_path: Path, state: str, code: int
) -> None:
    answering(tmp_path, {"status": {"verdict": {"state": state, "text": f"{state}: because", "causes": []}}})
    done = gossipdp("status", "--check", "--home", tmp_path)
    assert (done.code, done.out) == (code, "" if state == "?" else f"{state}: because\n")
    assert gossipdp("status", "--check", "--json", "--home", tmp_path).code == code
    assert gossipdp("status", "--home", tmp_path).code == 0


def test_status_check_without_a_daemon__unreachable(gossipdp: Run, founder: Path) -> None:
    assert gossipdp("status", "--check", "--home", founder).code == 4


def test_help_of_status_names_every_state(gossipdp: Run) -> None:
    out = gossipdp("status", "--help").out
    assert all(re.search(rf"^ +{kind.exit_code} {kind.name} ", out, re.M) for kind in STATES)


@pytest.mark.parametrize(("plain", "coloured"), [("", True), ("1", False)])
def test_verdict_on_a_terminal__fits_its_width_and_has_colour_unless_told_not_to(
    plain: str, coloured: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", plain)
    tables.print_verdict("degraded: no exchange for 4 min; no peer answers at 1.2.3.4:4710\x1b[2J", "red")
    out = capsys.readouterr().out
    assert ("\x1b[31m" in out) is coloured and "\x1b[2J" not in out
    lines = re.sub(r"\x1b\[\d+m", "", out).splitlines()
    assert len(lines) == 2 and all(len(line) <= 40 for line in lines)


def test_notice_tells_how_long_ago_it_was_given(gossipdp: Run, answering: Any, tmp_path: Path) -> None:
    told = {"verdict": {"state": "healthy", "text": "healthy: all well", "causes": [], "do": []}}
    told |= {"notices": ["GD-602 a", "GD-201 b"], "notices_ago": {"GD-602 a": 3720.0}}
    answering(tmp_path, {"status": told})
    lines = gossipdp("status", "--home", tmp_path).out.splitlines()
    assert "GD-602 a (1h 2m ago)" in lines and "GD-201 b" in lines


ROOT = Path(__file__).resolve().parents[3]
MEMBERS = [{"name": "anna", "id": "aa" * 32, "me": True, "state": "alive", "trains": True, "round": 9}]
STATUS = {"network": "tiny", "verdict": {"state": "healthy", "text": "healthy"}, "members": {"alive": 1}, "round": 9}


def test_command_on_a_terminal__keys_work_and_the_terminal_is_as_before(
    answering: Callable[..., Any], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    answering(home, {"status": STATUS, "members": {"members": MEMBERS}})
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    argv = [sys.executable, "-m", "peers.cli", "--home", str(home), "top"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24", "NO_COLOR": "1"}
    command = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=ROOT)
    try:
        assert "sort: name" in read_until(ours, "quit")
        os.write(ours, b"s")
        assert "sort: round" in read_until(ours, "sort: round")
        os.write(ours, b"\x03")
        read_until(ours, "\x1b[?1049l")
        assert command.wait() == 0
    finally:
        command.kill()
        command.wait()
    assert termios.tcgetattr(theirs) == before


def read_until(descriptor: int, wanted: str) -> str:
    text = ""
    while wanted not in text:
        text += os.read(descriptor, 65536).decode(errors="replace")
    return text


def test_command_without_a_terminal(
    gossipdp: Callable[..., Any], answering: Callable[..., Any], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    answering(home, {"status": STATUS, "members": {"members": MEMBERS}})
    refused = gossipdp("--home", home, "top")
    assert refused.code == 2 and "--once" in refused.err
    done = gossipdp("--home", home, "top", "--once")
    assert done.code == 0 and "anna" in done.out
