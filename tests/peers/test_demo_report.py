"""Figures, marks, report, picture and live table of a demo, from made-up files and answers."""

import copy
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file

from gossipdp.runtime.observability.history import FILE, Record
from peers.demo import table as demo_table
from peers.demo.options import Options
from peers.demo.process import Process
from peers.demo.report import MARKS, judge, summarize, write
from peers.jobs import byte_gpt
from peers.report.page import colours

SUMMARY: dict[str, Any] = {
    "peers": 2,
    "size": "0.25M",
    "steps": 40,
    "seconds": 12.3,
    "rounds": 4,
    "exchanges": {"mixed": 6, "mixed nothing": 1},
    "validation_loss": {"replicas": [1.70, 1.70], "average": 1.70, "alone": 1.80},
    "closing": {"peers": 2, "exchanges": 4, "relative_distance": 3.2e-05},
    "bytes_per_parameter_per_exchange": {"measured": 0.58, "formula": 0.57},
    "escalated_blocks": {"share": 0.02, "median_exchange": 0.0},
    "stall_share": 0.0131,
}


def judged(**changed: Any) -> dict[str, Any]:
    """SUMMARY with some figures replaced, and its marks."""
    summary = copy.deepcopy(SUMMARY)
    for name, figures in changed.items():
        summary[name] = {**summary[name], **figures} if isinstance(figures, dict) else figures
    return summary | {"marks": judge(summary)}


def status(**more: Any) -> dict[str, Any]:
    return {
        "id": "aa", "state": "ready", "round": 4, "blocks": 1000, "escalated_blocks": 30, "escalated_median": 0.02,
        "received_bytes": 700_000, "sent_bytes": 650_000, **more,
    }  # fmt: skip


def record(**more: Any) -> Record:
    """The last record of a peer's history."""
    made = Record(
        time=1.9e9, life=1, round=4, exchanges=3, exchanged=600_000, formula=590_000.0, parameters=1e6, received=700_000
    )
    return msgspec.structs.replace(made, **more)


def curve(process: Process, number: int = 1) -> None:
    """A training log with four losses and one validation; its last line is the validation at the end."""
    lines: list[dict[str, Any]] = [
        {"step": step, "loss": 3.0 - step / 100 + number / 10, "elapsed": 1.0} for step in (10, 20, 30, 40)
    ]
    lines[1]["val"] = 2.0 + number / 10
    process.losses.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"step": 40, "val": 1.7}]))


def curves(out: Path, peers: int) -> None:
    child: Any = SimpleNamespace(poll=lambda: 0)
    for number, name in enumerate([*(f"peer{number}" for number in range(1, peers + 1)), "alone"], 1):
        curve(Process(name, out, None, child), number)


def a_run(out: Path, statuses: list[dict[str, Any]], seeds: list[int], records: Sequence[Record] = ()) -> list[Process]:
    """Peers with these answers and last records, and weights from `seeds`. The last one is the lone replica."""
    processes = []
    for number, seed in enumerate(seeds, 1):
        lone = number == len(seeds)
        name = "alone" if lone else f"peer{number}"
        child: Any = SimpleNamespace(poll=lambda: 0)
        process = Process(name, out, None if lone else out / "homes" / name, child)
        process.status = {} if lone else statuses[number - 1]
        process.weights.parent.mkdir(parents=True, exist_ok=True)
        save_file(byte_gpt.build_model("0.25M", seed).state_dict(), process.weights)
        curve(process, number)
        if process.home is not None and records:
            (process.home / FILE).write_bytes(msgspec.json.encode(records[number - 1]) + b"\n")
        process.log.write_text(
            f'12:00:00 supervisor started\n{{"steps": 40, "stall_share": {number / 100}}}\nleaving\n'
        )
        processes.append(process)
    return processes


@pytest.fixture
def few_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = torch.randint(256, (2, 17), generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(byte_gpt, "validation_windows", lambda count, context: windows)


# -- figures -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few_windows")
def test_summary_of_two_peers_and_one_alone(tmp_path: Path) -> None:
    records = [record(), record(round=5, exchanges=4, failed=1, exchanged=400_000)]
    processes = a_run(tmp_path, [status(), status(escalated_median=0.04)], [0, 0, 7], records)
    summary = summarize(processes, Options(peers=2, steps=40), 12.34)
    losses = summary["validation_loss"]
    assert losses["replicas"] == [losses["average"]] * 2 and losses["alone"] != losses["average"]
    assert all(5.0 < loss < 6.0 for loss in (losses["average"], losses["alone"])), "ln 256 is that of a fresh model"
    assert summary["bytes_per_parameter_per_exchange"] == {"measured": 0.5, "formula": 0.59}
    assert summary["escalated_blocks"] == {"share": 0.03, "median_exchange": 0.04}
    assert summary["exchanges"] == {"mixed": 7, "mixed nothing": 1} and summary["rounds"] == 5
    assert summary["stall_share"] == 0.015, "the mean of the peers; the lone one has no daemon to wait for"
    assert (summary["peers"], summary["size"], summary["steps"], summary["every"], summary["batch"]) == (
        2, "0.25M", 40, 30, 4
    )  # fmt: skip
    assert summary["seconds"] == 12.3 and summary["received_bytes"] == [700_000, 700_000]
    assert summary["marks"] == judge(summary)


@pytest.mark.usefixtures("few_windows")
def test_average_is_that_of_the_weights(tmp_path: Path) -> None:
    summary = summarize(a_run(tmp_path, [status(), status()], [1, 2, 1]), Options(peers=2), 1.0)
    one, two = (byte_gpt.build_model("0.25M", seed) for seed in (1, 2))
    with torch.no_grad():
        for mine, other in zip(one.parameters(), two.parameters(), strict=True):
            mine.lerp_(other, 0.5)
    expected = byte_gpt.evaluate(one, byte_gpt.validation_windows(0, 0))
    assert summary["validation_loss"]["average"] == pytest.approx(expected, abs=2e-4)
    assert summary["validation_loss"]["replicas"][0] == summary["validation_loss"]["alone"]


@pytest.mark.usefixtures("few_windows")
def test_a_run_without_an_exchange__figures_are_missing_and_no_mark_is_reached_by_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    processes = a_run(tmp_path, [{}, {}], [1, 2, 3])
    for process in processes:
        process.log.write_text("killed before the last line\n")
    weights = byte_gpt.build_model("0.25M", 1).state_dict()
    save_file({name: value * torch.nan for name, value in weights.items()}, processes[0].weights)
    summary = summarize(processes, Options(peers=2), 1.0)
    assert summary["validation_loss"]["replicas"][0] is summary["validation_loss"]["average"] is None
    assert summary["bytes_per_parameter_per_exchange"] == {"measured": None, "formula": None}
    assert summary["stall_share"] is None and summary["escalated_blocks"] == {"share": None, "median_exchange": None}
    assert [mark["reached"] for mark in summary["marks"].values()] == [False] * 4
    write(summary, tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail) == summary
    assert "4 of 4 marks missed:\n  - nats/byte better than alone" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({}, set()),
        ({"validation_loss": {"alone": 1.75}}, set()),  # 0.05 to the digit
        ({"validation_loss": {"alone": 1.7499}}, {"gain_over_alone"}),
        ({"validation_loss": {"alone": 1.5}}, {"gain_over_alone"}),
        ({"validation_loss": {"replicas": [1.70, 1.701]}}, set()),
        ({"validation_loss": {"replicas": [1.70, 1.6989]}}, {"off_average"}),
        ({"escalated_blocks": {"median_exchange": 0.1}}, set()),
        ({"escalated_blocks": {"median_exchange": 0.1001}}, {"escalated_median"}),
        ({"bytes_per_parameter_per_exchange": {"measured": 0.5985}}, set()),
        ({"bytes_per_parameter_per_exchange": {"measured": 0.61}}, {"bytes_off_formula"}),
        ({"bytes_per_parameter_per_exchange": {"measured": 0.53}}, {"bytes_off_formula"}),
    ],
)
def test_a_mark_is_reached_up_to_its_bound(changed: dict[str, Any], missed: set[str]) -> None:
    marks = judged(**changed)["marks"]
    assert {name for name, mark in marks.items() if not mark["reached"]} == missed
    assert {name: mark["mark"] for name, mark in marks.items()} == {
        "gain_over_alone": 0.05,
        "off_average": 0.001,
        "escalated_median": 0.10,
        "bytes_off_formula": 0.05,
    }


# -- report and picture ------------------------------------------------------------------------------------------


def test_report_says_plainly_which_mark_is_missed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    curves(tmp_path, 2)
    write(judged(validation_loss={"alone": 1.725}, escalated_blocks={"median_exchange": 0.25}), tmp_path)
    told = capsys.readouterr().out
    assert "2 of 4 marks missed:\n" in told
    assert "  0.025 nats/byte better than alone, at least 0.050\n" in told
    assert "  25.0% of the blocks escalated in the median exchange, at most 10.0%\n" in told
    write(judged(), tmp_path)
    assert "all 4 marks are reached" in capsys.readouterr().out


def test_report_has_every_figure__fits_80_columns__and_is_written_as_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    curves(tmp_path, 12)
    summary = judged(peers=12, validation_loss={"replicas": [1.7 + n / 1000 for n in range(12)]})
    write(summary, Path())
    told = capsys.readouterr().out
    text = Path("report.txt").read_text()
    assert told == "\n" + text and max(map(len, text.splitlines())) <= 80
    for figure in (
        "1.700",
        "1.711",
        "0.0110",
        "1.800",
        "3e-05",
        "4; 6 mixed, 1 mixed nothing",
        "0.580",
        "0.570",
        "2.0%",
        "1.31%",
        "12",
    ):
        assert figure in text, figure
    assert "in gossipdp's hook after a step" in text, "the report defines lost time"
    assert json.loads(Path("summary.json").read_text()) == summary


def test_picture_is_of_this_runs_processes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    drawn: list[Any] = []
    real = figures.Figure.savefig
    monkeypatch.setattr(figures.Figure, "savefig", lambda self, path: (drawn.append(self), real(self, path))[1])
    curves(tmp_path, 2)
    for foreign in ("notes.jsonl", "peer3.jsonl"):
        (tmp_path / foreign).write_text("not JSON")
    write(judged(), tmp_path)
    (axes,) = drawn[0].axes
    labels = ["peer1", "peer2", "trained alone", "final model of all peers: 1.700"]
    assert [line.get_label() for line in axes.lines] == labels
    assert list(axes.lines[0].get_xdata()) == [20, 40]
    assert list(axes.lines[2].get_ydata()) == pytest.approx([2.3, 1.7])
    assert list(axes.lines[3].get_ydata()) == [1.7, 1.7]
    assert [line.get_color() for line in axes.lines[:3]] == [*colours()[:2], "black"], "those of the run's report"
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert "loss.png" in (tmp_path / "report.txt").read_text()


def test_without_matplotlib__the_report_names_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write(judged(), tmp_path)
    told = capsys.readouterr().out
    assert "pip install 'gossipdp[demo]'" in told and "loss.png" not in told
    assert {path.name for path in tmp_path.iterdir()} == {"summary.json", "report.txt"}


# -- while it runs -----------------------------------------------------------------------------------------------


def alive() -> Any:
    return SimpleNamespace(poll=lambda: None)


def running(out: Path, count: int) -> list[Process]:
    processes = []
    for number in range(1, count + 1):
        state = status(id=f"{number:02d}" * 32, last_partner="01" * 32, consensus_distance=0.00123)
        process = Process(f"peer{number}", out, out, alive(), state)
        process.losses.write_text('{"step": 12000, "loss": 2.3456}\n{"step": 12010, "lo')
        processes.append(process)
    return [*processes, Process("alone", out, None, alive())]


def test_table_at_80_columns_cuts_nothing(tmp_path: Path) -> None:
    processes = running(tmp_path, 12)
    processes[1].status |= {"warming_up": True, "received_bytes": 123_456_789, "sent_bytes": 99_900}
    processes[2].status = {}
    processes[3].child.poll = lambda: -15  # type: ignore[method-assign]
    screen = io.StringIO()
    Console(file=screen, width=80).print(demo_table.table(processes, Options(), 75.0))
    title, head, first, second, third, fourth, *_, lone = (line.rstrip() for line in screen.getvalue().splitlines())
    assert "…" not in screen.getvalue() and title == "byte_gpt 0.25M, 75 s"
    assert head.split() == list(demo_table.WIDTHS)
    assert first.split() == ["peer1", "ready", "4", "12000", "2.346", "peer1", "700kB", "650kB", "1.2e-03"]
    assert second.split()[1:2] + second.split()[-3:] == ["warm-up", "123MB", "99.9kB", "1.2e-03"]
    assert third.split()[:2] == ["peer3", "starting"] and "exit -15" in fourth
    assert lone.split() == ["alone", "starting"]


def test_plain_lines_fit_80_columns__and_keep_a_name_and_its_figures_together(tmp_path: Path) -> None:
    lines = demo_table.plain(running(tmp_path, 5), 20.0).splitlines()
    assert lines[0] == "   20 s  peer1 12000:2.346  peer2 12000:2.346  peer3 12000:2.346"
    assert lines[1] == "         peer4 12000:2.346  peer5 12000:2.346  alone starting"


def test_plain_lines_are_ten_seconds_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with demo_table.live(Options(live=False)) as show:
        for seconds in (1.0, 2.0, 10.9, 11.0, 20.0):
            show(running(tmp_path, 1), seconds)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["1", "11"]


def test_marks_have_texts_that_fit_a_line() -> None:
    assert all(len(f"  100.000 {mark.text} {mark.mark:{mark.form}}") <= 80 for mark in MARKS.values())
