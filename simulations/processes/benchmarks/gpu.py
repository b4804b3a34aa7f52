"""A billion parameters in bf16 on one GPU: what a peer costs its training, its device and its host.

    python -m simulations.processes.benchmarks.gpu [--layers 20] [--width 2048] [--every 100] [--limit 300]

Two daemons run on this machine. The founder's training process is timed bare, attached alone, and attached while
exchanges run with a partner whose steps take no time on the GPU. Then the partner trains on the same GPU, both finish,
and their final models are compared. Step times come from CUDA events, so no step waits for the measurement.
Every figure is printed as it is known: a run that is cut off still says something.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors import safe_open

import gossipdp
from gossipdp.errors import GossipdpError
from gossipdp.runtime.link.region import Allocation, Region
from gossipdp.training.tensors.layout import Layout
from peers.control import ask
from peers.jobs.byte_gpt import GPT, Size, load_corpus, window_loss, windows_at
from simulations.processes.benchmarks.idle_partner import idle_partner, make_steps
from simulations.processes.benchmarks.report import Report
from simulations.processes.two_daemons import one_daemon

CONTEXT = 1024


class Trainer:
    """A GPT in bf16 with AdamW, whose optimizer state is in bf16 too.

    Args:
        options: of the command line.
        seed: of the data.
    """

    def __init__(self, options: argparse.Namespace, seed: int) -> None:
        self.device, self.batch = torch.device(options.device), options.batch
        torch.manual_seed(0)
        with self.device:
            self.model = GPT(Size(options.layers, options.width // 128, options.width, 0.0)).to(torch.bfloat16)
        for parameter in self.model.parameters():
            if parameter.dim() == 2:
                torch.nn.init.normal_(parameter, std=0.02)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
        self._random = torch.Generator().manual_seed(seed)
        self._text = load_corpus().train
        self.losses: list[torch.Tensor] = []

    @property
    def size(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def step(self) -> None:
        starts = torch.randint(len(self._text) - CONTEXT - 1, (self.batch,), generator=self._random)
        windows = windows_at(self._text, starts, CONTEXT).to(self.device, non_blocking=True)
        loss = window_loss(self.model, windows)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss.detach())

    def run(self, steps: int) -> list[float]:
        """Train. Returns the milliseconds of each step on the device."""
        marks = [self._mark()]
        for _ in range(steps):
            self.step()
            marks.append(self._mark())
        self.settle()
        return [_between(*pair) for pair in itertools.pairwise(marks)]

    def settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _mark(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _between(first: Any, second: Any) -> float:
    return 1e3 * (second - first) if isinstance(first, float) else float(first.elapsed_time(second))


def times_of(milliseconds: list[float]) -> dict[str, Any]:
    """Mean, median and the longest, in milliseconds."""
    longest = sorted(milliseconds)[-3:]
    return {
        "mean_ms": round(statistics.fmean(milliseconds), 2),
        "median_ms": round(statistics.median(milliseconds), 2),
        "longest_ms": [round(each, 1) for each in longest],
    }


def device_bytes(trainer: Trainer) -> int:
    """The most bytes that torch had on the device since the last call."""
    if trainer.device.type != "cuda":
        return 0
    found = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return found


def daemon_of(home: Path) -> psutil.Process:
    """The process that answers at this home. Its parent has the same command line."""
    found = [each for each in psutil.process_iter() if _about(each, home)]
    return max(found, key=lambda each: each.memory_info().rss)


def _about(process: psutil.Process, home: Path) -> bool:
    with contextlib.suppress(psutil.Error):
        return str(home) in process.cmdline() and process.pid != os.getpid()
    return False


def host_figures(home: Path, size: int) -> dict[str, float]:
    """Peak of the daemon's resident memory, shared memory included, and its CPU seconds."""
    daemon = daemon_of(home)
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    peak = next(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    used = daemon.cpu_times()
    figures = {"peak_gb": round(peak / 1e9, 2), "bytes_a_parameter": round(peak / size, 1)}
    return figures | {"cpu_seconds": round(used.user + used.system, 1)}


def news_of(home: Path) -> dict[str, Any]:
    status = ask(home, "status", timeout=60.0)
    names = ("state", "round", "exchanges", "exchanged_bytes", "consensus_distance", "stall_seconds", "last_exchange")
    return {name: status[name] for name in names} | {"notices": status["notices"][-3:]}


def measure(options: argparse.Namespace) -> int:
    report = Report(options.limit)
    trainer = Trainer(options, 1)
    settings = {"exchange.every": options.every, "exchange.warmup_steps": 0, "exchange.early_steps": 0}
    report.line("model", parameters=trainer.size, torch=torch.__version__, device=_name(trainer.device))
    with one_daemon("host", ["up", "--network", "bench"], settings) as home:
        try:
            _timed(options, report, trainer, home, settings)
        except (GossipdpError, TimeoutError) as error:
            report.line("failed", error=str(error), log=home.with_suffix(".log").read_text()[-3000:])
            return 1
    return 0


def _timed(options: argparse.Namespace, report: Report, trainer: Trainer, home: Path, settings: dict[str, Any]) -> None:
    trainer.run(10)
    if trainer.device.type == "cuda":
        report.line("a snapshot's copy, over a pinned one of as many bytes", rate=copy_rate(trainer))
    device_bytes(trainer)
    bare = trainer.run(options.bare)
    report.line("bare", **times_of(bare), device_gb=round(device_bytes(trainer) / 1e9, 2))
    with report.phase("attach and found"):
        peer = gossipdp.attach(trainer.model, trainer.optimizer, home=home)
    alone = trainer.run(2 * options.every)
    report.line("attached, alone", **times_of(alone), **_share(peer, alone), ratio=_ratio(bare, alone))
    report.line("device", device_gb=round(device_bytes(trainer) / 1e9, 2))
    report.line("founder", **host_figures(home, trainer.size), **news_of(home))
    with one_daemon("partner", ["join", f"@{home / 'invite'}"], settings) as partner:
        with report.phase("the partner joins"):
            _until(lambda: ask(partner, "status", timeout=60.0)["state"] == "ready", report.left)
        report.line("founder", **host_figures(home, trainer.size))
        report.line("partner", **host_figures(partner, trainer.size))
        before = peer.stall_seconds
        pace = str(statistics.fmean(bare) / 1e3)
        with idle_partner(__spec__.name, [*sys.argv[1:], "--partner", str(partner), "--pace", pace]):
            beside = trainer.run(options.rounds * options.every)
        shares = _share(peer, beside, before)
        report.line("attached, exchanging", **times_of(beside), **shares, ratio=_ratio(bare, beside))
        report.line("founder", **host_figures(home, trainer.size), **news_of(home))
        if options.together and report.left > 60.0:
            command = [sys.executable, "-m", __spec__.name, *sys.argv[1:], "--partner", str(partner)]
            with subprocess.Popen(command) as child:
                together = trainer.run(2 * options.every)
                report.line("both train on this GPU", **times_of(together))
                child.wait(timeout=report.left)
            report.line("partner", **host_figures(partner, trainer.size), **news_of(partner))
        with report.phase("detach"):
            peer.detach()
        again = trainer.run(options.bare)
        report.line("bare again", **times_of(again))
        # A device that warms up changes its clock: the time without gossip is that before and after.
        report.line(
            "against bare before and after", alone=_ratio(bare + again, alone), exchanging=_ratio(bare + again, beside)
        )
        report.line("loss", first=trainer.losses[0].item(), last=trainer.losses[-1].item())
        report.line("founder", **host_figures(home, trainer.size), **news_of(home))
        if report.left > 30.0:
            _finished(report, home, partner)


def shared(size: int) -> Region:
    """Memory as the daemon allocates it and a training process maps it."""
    allocation = Allocation(size)
    try:
        while not allocation.step():
            continue
        return Region(allocation.fd, size)
    finally:
        allocation.close()


def copy_rate(trainer: Trainer, pairs: int = 5) -> float:
    """Speed of a snapshot's copy to shared memory, relative to a pinned copy of as many bytes."""
    layout = Layout(trainer.model)
    region = shared(layout.schema.size)
    layout.pin(region)
    if not torch.from_numpy(region.buffers[0]).is_pinned():
        raise SystemExit("CUDA cannot pin memory that is shared here: what was measured is not the copy of training")
    into = torch.empty(layout.schema.size, dtype=torch.float32, pin_memory=True)
    plain = torch.empty(layout.schema.size, dtype=torch.float32, device=trainer.device)

    def seconds(work: Callable[[], object]) -> float:
        trainer.settle()
        began = time.perf_counter()
        work()
        trainer.settle()
        return time.perf_counter() - began

    def pinned_copy() -> torch.Tensor:
        return into.copy_(plain, non_blocking=True)

    ratios = []
    for _ in range(pairs + 1):
        reference = seconds(pinned_copy)
        ratios.append(reference / seconds(lambda: layout.read(region.buffers[0])))
    layout.finish()
    return round(statistics.median(ratios[1:]), 3)  # the first pair warms up


def _finished(report: Report, home: Path, partner: Path) -> None:
    with report.phase("finish") as found:
        command = [sys.executable, "-m", "peers.cli", "--home", str(home), "finish"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=report.left, check=False)
        found.update(code=done.returncode, said=(done.stdout + done.stderr)[-800:])
    worst, largest = 0.0, 0.0
    paths = [sorted((each / "final").glob("*.safetensors"))[0] for each in (home, partner)]
    with safe_open(paths[0], "pt") as one, safe_open(paths[1], "pt") as other:
        for name in one.keys():  # noqa: SIM118
            first, second = one.get_tensor(name).float(), other.get_tensor(name).float()
            worst = max(worst, float((first - second).abs().max()))
            largest = max(largest, float(first.abs().max()))
    report.line("final models", largest_difference=worst, largest_value=largest)


def _share(peer: gossipdp.Attachment, steps: list[float], before: float = 0.0) -> dict[str, float]:
    return {"waits_percent": round(1e5 * (peer.stall_seconds - before) / sum(steps), 2)}


def _ratio(bare: list[float], attached: list[float]) -> float:
    """Steps a second attached, over those without gossip."""
    return round(statistics.fmean(bare) / statistics.fmean(attached), 4)


def _until(done: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError("the partner did not get the model")
        time.sleep(0.1)


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def train_beside(options: argparse.Namespace) -> int:
    """The partner's training, in a process of its own."""
    report = Report(options.limit)
    trainer = Trainer(options, 2)
    with report.phase("the partner attaches"):
        peer = gossipdp.attach(trainer.model, trainer.optimizer, home=options.partner)
    report.line("the partner's steps", **times_of(trainer.run(options.every)))
    with report.phase("the partner detaches"):
        peer.detach()
    report.line("the partner's loss", first=trainer.losses[0].item(), last=trainer.losses[-1].item())
    return 0


def step_beside(options: argparse.Namespace) -> int:
    """The partner's training while the founder's is timed: on the CPU, and idle."""
    options.device = "cpu"
    make_steps(Trainer(options, 2).model, options.partner, options.pace)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="a peer's cost on a GPU, at a billion parameters in bf16")
    add = parser.add_argument
    add("--layers", type=int, default=20)
    add("--width", type=int, default=2048, help="a multiple of 128 (%(default)s)")
    add("--batch", type=int, default=8, help="windows of 1024 bytes a step (%(default)s)")
    add("--bare", type=int, default=40, help="steps without gossip, before and after (%(default)s)")
    add("--every", type=int, default=100, help="steps a round (%(default)s)")
    add("--rounds", type=int, default=4, help="rounds with exchanges (%(default)s)")
    add("--limit", type=float, default=300.0, help="seconds after which no phase begins (%(default)s)")
    add("--device", default="cuda")
    add("--no-together", dest="together", action="store_false", help="the partner does not train")
    add("--partner", type=Path, help=argparse.SUPPRESS)
    add("--pace", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.partner:
        return measure(options)
    return step_beside(options) if options.pace else train_beside(options)


if __name__ == "__main__":
    sys.exit(main())
