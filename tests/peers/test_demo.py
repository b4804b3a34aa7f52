"""The demo with made-up processes, and one short run of the real demo."""

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import peers.cli
from gossipdp.errors import HardwareError
from gossipdp.runtime.observability.history import FILE, read
from peers import logs, supervisor
from peers.child import Backoff, Policy
from peers.child import Child as Command
from peers.demo import main as demo_main
from peers.demo import main as demos
from peers.demo.main import MARKER, Demo, FolderError, claimed
from peers.demo.options import SIZES, Options
from peers.demo.process import Process
from peers.report.gather import totals_of

ROOT = Path(peers.cli.__file__).parents[1]


def a_process(name: str, code: int | None, state: str) -> Process:
    child = SimpleNamespace(poll=lambda: code, returncode=code)
    return Process(name, Path("out"), Path("home"), child, {"state": state})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first", "second", "left_behind"),
    [
        ((0, "ready"), (None, "joining"), True),
        ((0, "ready"), (None, "ready"), False),
        ((None, "ready"), (None, "joining"), False),
    ],
)
def test_a_peer_that_waits_for_a_model_nobody_has_any_more_ends_the_demo(first, second, left_behind) -> None:
    demo = Demo(Options(peers=2))
    demo.processes = [a_process("peer1", *first), a_process("peer2", *second)]
    if left_behind:
        with pytest.raises(HardwareError, match="GD-503"):
            demo.check_all_have_joined()
    else:
        demo.check_all_have_joined()


# -- options -----------------------------------------------------------------------------------------------------


def test_sizes_are_those_of_the_training_script() -> None:
    from peers.jobs import byte_gpt

    assert tuple(byte_gpt.SIZES) == SIZES


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (["--size", "7M"], "0.25M"),
        (["--steps", "0"], "--steps"),
        (["--every", "-3"], "--every"),
        (["--batch", "many"], "not a valid integer"),
        (["--peers", "1"], "2<=x<=32"),
        (["--peers", "33"], "2<=x<=32"),
    ],
)
def test_what_no_demo_can_run_with_is_refused_before_anything_starts(
    wrong: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert peers.cli.main(["demo", "--out", str(tmp_path / "demo"), *wrong]) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()


def test_help_of_every_command_loads_nothing_heavy() -> None:
    """One process asks for all help texts, and reports which of them imported a heavy package."""
    code = (
        "import contextlib, io, sys, click, peers.cli\n"
        "heavy = {'rich', 'numpy', 'torch', 'numba', 'zmq', 'msgspec', 'matplotlib', 'safetensors', 'asyncio'}\n"
        "def walk(command, path):\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as said:\n"
        "        try: status = peers.cli.main([*path, '--help'])\n"
        "        except SystemExit as end: status = end.code\n"
        "    assert not status and 'sage: gossipdp' in said.getvalue(), path\n"
        "    found = heavy & {name.partition('.')[0] for name in sys.modules}\n"
        "    assert not found, (path, found)\n"
        "    print(*path)\n"
        "    for name, each in getattr(command, 'commands', {}).items(): walk(each, (*path, name))\n"
        "walk(peers.cli.cli, ())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert {"demo", "up", "plan", "checkpoint export"} <= set(done.stdout.splitlines())


# -- the folder --------------------------------------------------------------------------------------------------


def test_foreign_files_are_neither_removed_nor_joined(tmp_path: Path) -> None:
    (tmp_path / "homes").mkdir()
    precious = [tmp_path / name for name in ("precious.safetensors", "notes.jsonl", "homes/address", "peer1.log")]
    for path in precious:
        path.write_text("mine")
    with pytest.raises(FolderError, match="GD-318") as refused, claimed(tmp_path):
        raise AssertionError("claimed")
    assert refused.value.exit_code == 2
    assert all(path.read_text() == "mine" for path in precious) and not (tmp_path / MARKER).exists()


def test_a_refused_folder_is_a_usage_error_that_says_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "precious.safetensors").write_text("mine")
    assert peers.cli.main(["demo", "--out", "."]) == 2
    told = capsys.readouterr().err
    assert told.startswith("GD-318 ") and "seen: .: precious.safetensors" in told and "--out" in told.splitlines()[-2]
    assert [path.name for path in tmp_path.iterdir()] == ["precious.safetensors"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "report").write_text("mine")
    with pytest.raises(FolderError, match="not a folder"), claimed(tmp_path / "report"):
        raise AssertionError("claimed")
    assert (tmp_path / "report").read_text() == "mine"


def test_a_demo_starts_afresh_in_its_own_folder__and_removes_only_what_demos_make(tmp_path: Path) -> None:
    made = ["peer1.jsonl", "peer32.safetensors", "peer4.log", "alone.jsonl", "alone.safetensors", "alone.log",
            "summary.json", "report.txt", "loss.png", "homes/peer1/key", "homes/peer12/state/model"]  # fmt: skip
    foreign = ["precious.safetensors", "notes.jsonl", "peer1.txt", "peer0.log", "mypeer1.log", "peer1.jsonl.old",
               "old/peer1.jsonl", "homes/mine/key", "homes/peer1.txt", "peer7.jsonl/inner"]  # fmt: skip
    out = tmp_path / "runs" / "demo"
    with claimed(out):
        assert (out / MARKER).is_file()
    for name in (*made, *foreign):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(name)
    with claimed(out):
        left = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert left == {MARKER, *foreign}


def test_links_in_a_demos_folder_lead_to_no_removal_elsewhere(tmp_path: Path) -> None:
    mine, out = tmp_path / "mine", tmp_path / "demo"
    (mine / "peer1").mkdir(parents=True)
    (mine / "peer1" / "key").write_text("mine")
    with claimed(out):
        (out / "homes").symlink_to(mine)
        (out / "alone.log").symlink_to(mine / "peer1" / "key")
    with claimed(out):
        assert (mine / "peer1" / "key").read_text() == "mine"
        assert [path.name for path in out.iterdir()] == [MARKER]


def test_a_folder_where_a_demo_runs_is_not_taken_by_another(tmp_path: Path) -> None:
    with claimed(tmp_path / "demo"):
        (tmp_path / "demo" / "peer1.log").write_text("of the one that runs")
        with pytest.raises(FolderError, match="another demo runs"), claimed(tmp_path / "demo"):
            raise AssertionError("claimed")
        assert (tmp_path / "demo" / "peer1.log").exists()
    with claimed(tmp_path / "demo"):
        assert not (tmp_path / "demo" / "peer1.log").exists()


def test_names_that_are_removed_are_all_that_a_demo_writes(tmp_path: Path) -> None:
    demo = Demo(Options(out=tmp_path))
    home = tmp_path / "homes" / "peer3"
    child: Any = SimpleNamespace(poll=lambda: None)
    process, alone = Process("peer3", tmp_path, home, child), Process("alone", tmp_path, None, child)
    written = [process.log, process.losses, alone.weights]
    assert all(demo_main._FILE.fullmatch(path.name) for path in written)
    assert str(process.losses) in demo.training_command("peer3", 3)
    assert "--save" not in demo.training_command("peer3", 3) and process.weights.parent == home / "final"
    assert str(alone.weights) in demo.training_command("alone", 1)


# -- processes that fail -----------------------------------------------------------------------------------------


class Child:
    """Stands for a process. It lives until it is told to end, or has ended from the start."""

    def __init__(self, code: int | None) -> None:
        self.code = code

    def poll(self) -> int | None:
        return self.code

    def send_signal(self, number: int) -> None:
        self.code = -number

    def wait(self, timeout: float) -> int:
        assert self.code is not None
        return self.code


Start = Callable[[str], tuple[int | None, bytes]]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[Start], Demo]]:
    """`start(how)`: a demo with made-up processes; `how` maps a name to its exit status and its log."""
    children: list[Child] = []

    def with_processes(how: Start) -> Demo:
        def popen(arguments: Sequence[str], *, stdout: Any, **others: Any) -> Child:
            name = Path(stdout.name).stem
            code, log = how(name)
            os.write(stdout.fileno(), log)
            if name == "peer1" and not code:
                invite = tmp_path / "demo" / "homes" / "peer1" / "invite"
                invite.parent.mkdir(parents=True)
                invite.write_text("")
            children.append(Child(code))
            return children[-1]

        looks = iter(range(50))
        monkeypatch.setattr(demos.subprocess, "Popen", popen)
        monkeypatch.setattr(demos.time, "sleep", lambda seconds: next(looks))  # raises where a demo would never end
        (tmp_path / "demo").mkdir()
        return Demo(Options(peers=2, live=False, out=tmp_path / "demo"))

    yield with_processes
    assert all(child.code is not None for child in children), "left running"


def gone(what: str, code: int) -> bytes:
    """The log line of a real supervisor that restarts `what`."""
    seen: list[logging.LogRecord] = []
    catcher = logging.Handler()
    catcher.emit = seen.append  # type: ignore[method-assign]
    child = Command(what, [], {}, None, Backoff(Policy()), "mark")  # type: ignore[arg-type]
    supervisor.log.addHandler(catcher)
    try:
        child.postpone(1.0, code)
    finally:
        supervisor.log.removeHandler(catcher)
    return (logs.Text("peer2", "supervisor").format(seen[0]) + "\n").encode()


def fails(demo: Demo) -> HardwareError:
    with pytest.raises(HardwareError) as raised, demos.stopping(demo):
        demo.run()
    assert raised.value.code == "GD-503" and raised.value.do
    return raised.value


def test_the_lone_replica_fails__the_demo_ends_and_shows_its_log(start: Callable[[Start], Demo]) -> None:
    words = b"byte_gpt: error: argument --size: invalid choice: '7M'\n"
    error = fails(start(lambda name: (2, words) if name == "alone" else (None, b"training\n")))
    assert "alone ended with 2" in error.cause and "invalid choice: '7M'" in error.seen and "alone.log" in error.do


@pytest.mark.parametrize("what", ["training command", "peer daemon"])
def test_a_supervisor_restarts_in_vain__the_demo_ends_and_shows_its_log(
    start: Callable[[Start], Demo], what: str
) -> None:
    log = b"" + (b"error: no such size\n" + gone(what, 2)) * 3
    error = fails(start(lambda name: (None, log) if name == "peer2" else (None, b"")))
    assert "peer2 was restarted 3 times" in error.cause and "no such size" in error.seen


def test_a_first_peer_that_does_not_start__is_shown_with_its_log(start: Callable[[Start], Demo]) -> None:
    error = fails(start(lambda name: (3, b"GD-311 no such preset\n")))
    assert "peer1 did not start" in error.cause and "GD-311" in error.seen


def test_a_process_that_ends_well_without_weights__is_named(start: Callable[[Start], Demo]) -> None:
    error = fails(start(lambda name: (0, b"leaving\n")))
    assert "peer1 ended without a final model" in error.cause and "leaving" in error.seen


def test_one_restart_is_no_failure__and_lines_are_counted_once(tmp_path: Path) -> None:
    process = Process("peer1", tmp_path, tmp_path, SimpleNamespace(poll=lambda: None))  # type: ignore[arg-type]
    line = gone("training command", -9)
    process.log.write_bytes(b"the training command is busy; again in a moment\n" + line + line[:-5])
    assert (process.restarts(), process.restarts()) == (1, 1)
    with process.log.open("ab") as log:
        log.write(line[-5:])
    assert process.restarts() == 2


def test_a_log_that_is_long__only_its_end_is_shown(tmp_path: Path) -> None:
    process = Process("alone", tmp_path, None, SimpleNamespace(poll=lambda: 1))  # type: ignore[arg-type]
    process.log.write_bytes(b"".join(b"line %d\n" % number for number in range(10_000)) + b"\xff the reason")
    lines = process.failed("it ended").seen.splitlines()
    assert len(lines) == 13 and lines[-1].endswith("the reason")
    process.log.write_bytes(b"")
    assert process.failed("it ended").seen.endswith("nothing")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_demo_told_to_end__or_whose_terminal_is_closed__ends_its_processes(
    start: Callable[[Start], Demo], number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as ended, demos.stopping(demo := start(lambda name: (None, b""))):
        demo.check_all_have_joined = lambda: os.kill(os.getpid(), number)  # type: ignore[method-assign]
        demo.run()
    assert ended.value.code == 128 + number and signal.getsignal(number) == before
    assert [process.child.poll() for process in demo.processes] == [-signal.SIGTERM] * 3


def test_under_nohup__a_closed_terminal_ends_nothing(start: Callable[[Start], Demo]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with demos.stopping(start(lambda name: (None, b""))):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


# -- the whole ---------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_two_peers_and_one_alone__the_summary_has_what_is_promised(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    command = [sys.executable, "-m", "peers.cli", "demo", "--out", str(out), "--peers", "2", "--no-live"]
    few = ["--steps", "120", "--every", "10", "--batch", "1"]
    done = subprocess.run([*command, *few], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((out / "summary.json").read_text())
    losses, sent = summary["validation_loss"], summary["bytes_per_parameter_per_exchange"]
    assert summary["peers"] == 2 and summary["rounds"] > 0
    runs = [totals_of(read(out / "homes" / name / FILE)) for name in ("peer1", "peer2")]
    assert summary["received_bytes"] == [run.received for run in runs]
    page = (out / "run.html").read_text()
    assert f"received: {sent['measured']:.3f} measured, {sent['formula']:.3f} by the formula." in page
    assert all(f"<tr><td>{name}</td>" in page for name in ("peer1", "peer2"))
    assert len(losses["replicas"]) == 2
    assert all(1.0 < loss < 5.0 for loss in (*losses["replicas"], losses["average"], losses["alone"]))
    assert set(sent) == {"measured", "formula"} and 0.0 <= summary["stall_share"] < 1.0
    assert set(summary["marks"]) == {"gain_over_alone", "off_average", "escalated_median", "bytes_off_formula"}
    assert summary["marks"]["off_average"]["reached"], "each final model is the mean of both"
    assert summary["closing"]["peers"] == 2 and summary["closing"]["relative_distance"] <= 1e-3
    report = (out / "report.txt").read_text()
    assert done.stdout.endswith(report) and all(name in report for name in ("summary.json", "report.txt"))
    assert not done.stderr and max(map(len, done.stdout.replace(str(out), "OUT").splitlines())) <= 80
