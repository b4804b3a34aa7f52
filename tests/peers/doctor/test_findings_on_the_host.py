"""What doctor finds on a host without its network."""

import errno
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gossipdp.runtime.files import Files
from gossipdp.runtime.free_memory import Free
from gossipdp.runtime.memory_need import MemoryPlan
from gossipdp.runtime.room import Room
from peers.doctor import dial_back, host, show
from peers.doctor.findings import Finding, Light, fine, grey, red, worst, yellow

PATIENT = 1000.0
"""seconds for torch to load, however busy the machine is"""


@pytest.mark.parametrize(
    ("soft", "hard", "light"), [(20_000, 20_000, Light.GREEN), (1024, 1024, Light.YELLOW), (256, 256, Light.RED)]
)
def test_open_files(soft: int, hard: int, light: Light) -> None:
    assert host.files((soft, hard)).light is light


def test_open_files__the_daemon_raises_its_soft_limit() -> None:
    assert host.files((256, 1 << 20)).light is Light.GREEN


@pytest.mark.parametrize(("free", "light"), [(1 << 40, Light.GREEN), (1 << 20, Light.RED)])
def test_memory(free: int, light: Light) -> None:
    plan = MemoryPlan()
    room = Room(plan, held=lambda: 0, free=lambda: Free(free, 1 << 41, "this machine", "none"))
    finding = host.memory(room, plan, 1_000_000_000)
    assert finding.light is light and "1,000,000,000 parameters" in finding.said
    assert host.memory(room, plan, 0).light is Light.GREY


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def test_port_is_taken__its_holder_is_named(listener: socket.socket) -> None:
    number = listener.getsockname()[1]
    finding = host.port(number, alive=False)
    assert (finding.light, finding.fault) == (Light.RED, "port-taken") and str(number) in finding.said
    assert host.port(number, alive=True).light is Light.GREEN
    listener.close()
    assert host.port(number, alive=False) == fine("port", f"{number} is free")
    assert host.port(0, alive=False).light is Light.GREY


@pytest.mark.parametrize(
    ("script", "light", "fault", "said"),
    [
        ("raise ModuleNotFoundError(\"No module named 'torch'\")", Light.YELLOW, "no-torch", "not installed"),
        ("raise RuntimeError('CUDA driver \\x1b[2J too old')", Light.RED, "torch-fails", "CUDA driver"),
        ('print(\'{"torch": "2.13.0", "built": "12.8", "gpus": []}\')', Light.YELLOW, "no-gpu", "finds no GPU"),
        ('print(\'{"torch": "2.13.0", "built": "", "gpus": []}\')', Light.GREEN, "", "built for the CPU only"),
        (
            'print(\'{"torch": "2.13.0", "built": "12.8", "gpus": [["H100", 70000000000, 80000000000]]}\')',
            Light.GREEN,
            "",
            "H100 (70 of 80 GB free)",
        ),
    ],
    ids=["missing", "fails", "no-gpu", "cpu", "gpu"],
)
def test_trial_of_torch(script: str, light: Light, fault: str, said: str) -> None:
    finding = host.torch((sys.executable, "-I", "-S", "-c", script), patience=PATIENT)
    assert (finding.light, finding.fault) == (light, fault) and said in finding.said and "\x1b" not in finding.said


@pytest.mark.parametrize(
    ("before", "light", "fault"), [(None, Light.YELLOW, "torch-slow"), (b"GPU\n", Light.RED, "torch-hangs")]
)
def test_trial_of_torch_that_ends_too_late__blames_a_gpu_only_if_one_was_tried(
    monkeypatch: pytest.MonkeyPatch, before: bytes | None, light: Light, fault: str
) -> None:
    def late(argv: Any, *, timeout: float, **_: Any) -> Any:
        raise subprocess.TimeoutExpired(argv, timeout, output=before)

    monkeypatch.setattr(subprocess, "run", late)
    finding = host.torch()
    assert (finding.light, finding.fault) == (light, fault) and ("GPU that hangs" in finding.do) == bool(before)


def test_trial_of_torch_runs_here() -> None:
    pytest.importorskip("torch")
    assert host.torch(patience=PATIENT).fault in ("", "no-gpu")


def test_disk__a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    ticks = iter([0.0, 0.1, 0.2])
    finding = host.disk(tmp_path / "not" / "yet", 0, now=lambda: next(ticks))
    assert finding.light is Light.GREEN and str(tmp_path) in finding.about and "84 MB/s, fsync 100 ms" in finding.said
    assert list(tmp_path.iterdir()) == []


def test_disk_is_slow(tmp_path: Path) -> None:
    ticks = iter([0.0, 5.0, 5.1])
    finding = host.disk(tmp_path, 0, now=lambda: next(ticks))
    assert (finding.light, finding.fault) == (Light.YELLOW, "disk-slow")


def test_disk_has_no_room_for_this_model(tmp_path: Path) -> None:
    finding = host.disk(tmp_path, 1 << 60)
    assert (finding.light, finding.fault) == (Light.RED, "disk-full") and "this model needs" in finding.said


@pytest.mark.parametrize(("number", "fault"), [(errno.EDQUOT, "disk-full"), (errno.EROFS, "disk-fails")])
def test_disk_refuses_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, fault: str) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, "refused")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", refuse)
    assert host.disk(tmp_path, 0, Files()).fault == fault


def packet(source: bytes, port: int, flags: int, version: int = 4, protocol: int = 6) -> bytes:
    tcp = struct.pack("!HHIIBB", 40_000, port, 1, 0, 5 << 4, flags) + bytes(6)
    if version == 4:
        return bytes([0x45]) + bytes(8) + bytes([protocol]) + bytes(2) + source + bytes(4) + tcp
    return bytes([0x60]) + bytes(5) + bytes([protocol]) + bytes(1) + source + bytes(16) + tcp


@pytest.mark.parametrize(
    ("raw", "attempt"),
    [
        (packet(bytes([10, 77, 0, 1]), 4710, 0x02), ("10.77.0.1", 4710)),
        (packet(bytes(15) + b"\x01", 4711, 0x02, version=6), ("::1", 4711)),
        (packet(bytes([10, 77, 0, 1]), 4710, 0x12), None),
        (packet(bytes([10, 77, 0, 1]), 4710, 0x02, protocol=17), None),
        (packet(bytes([10, 77, 0, 1]), 4710, 0x02)[:24], None),
        (b"\x50" + bytes(60), None),
        (b"", None),
    ],
    ids=["v4", "v6", "answer", "udp", "cut", "other", "empty"],
)
def test_attempts_to_connect_are_read_from_packets(raw: bytes, attempt: tuple[str, int] | None) -> None:
    assert dial_back._attempt(raw) == attempt


@pytest.mark.needs("packet socket")
def test_arrivals_are_counted(listener: socket.socket) -> None:
    number = listener.getsockname()[1]
    with dial_back.Arrivals() as arrivals, socket.create_connection(("127.0.0.1", number)):
        assert arrivals.count()[("127.0.0.1", number)] == 1


def test_findings_at_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    hostile = red("way to \x1b[31mx:1", "refused", "word " * 40, "act " * 40)
    findings = [fine("Python", "3.11"), hostile, yellow("clock", "clock-off", "2 s", "NTP"), grey("port", "none")]
    show.show(findings, 3.2)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and "\x1b" not in "".join(lines)
    assert lines[0] == "ok        Python: 3.11" and lines[1].startswith("WRONG     way to ")
    assert lines[-1] == "1 wrong, 1 doubtful; 4 findings in 3 s"
    assert (show.exit_code(findings), show.exit_code(findings[2:]), worst([])) == (1, 0, Light.GREEN)
    told = show.as_json(findings, 3.2)
    assert told["worst"] == "red" and [each["light"] for each in told["findings"]] == ["green", "red", "yellow", "grey"]
    assert all(isinstance(finding, Finding) for finding in findings)
