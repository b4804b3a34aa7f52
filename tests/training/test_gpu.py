"""What is another path on CUDA: side streams, pinned memory, NCCL, scalers, FSDP2, compiled graphs.

Every test that can runs on the CPU as well, where it says what must come out, bit for bit; what needs a device says so
when it is skipped.
"""

import copy
import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import gossipdp
from gossipdp.runtime import link as links
from gossipdp.training import attach as attaching
from gossipdp.training.optimizer_state.adam import AdamMoments
from gossipdp.training.optimizer_state.encoder import KEYS
from gossipdp.training.optimizer_state.encoding import Encoded, decode, encode
from gossipdp.training.tensors import pinning
from gossipdp.training.tensors.layout import Layout
from tests.training.ledger_daemon import PumpedDaemon
from tests.training.ledger_pair import Pair
from tests.training.moments_daemon import MomentsDaemon

RECIPES = Path(__file__).parents[2] / "peers" / "jobs" / "recipes"
GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
needs_a_gpu = [pytest.mark.gpu, pytest.mark.skipif(GPUS < 1, reason="torch finds no CUDA device")]
pytestmark = pytest.mark.filterwarnings("ignore")  # those of torch about a device are its own affair

on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_a_gpu)])


class Mixed(nn.Module):
    """fp32, bf16, channels_last and running averages."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(300, 70)
        self.norm = nn.BatchNorm1d(70)
        self.low = nn.Linear(70, 50, dtype=torch.bfloat16)
        self.picture = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)


def settled(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def region_of(size: int) -> Any:
    """Memory like the daemon's: mapped, page by page."""
    memory = [mmap.mmap(-1, -(-4 * size // mmap.PAGESIZE) * mmap.PAGESIZE) for _ in range(2)]
    vectors = [np.frombuffer(each, np.float32, size) for each in memory]
    return SimpleNamespace(buffers=vectors, raw=[np.frombuffer(each, np.uint8) for each in memory])


def pinned(layout: Layout, region: Any, rank: int = 0, ranks: int = 1) -> None:
    layout.pin(region, rank, ranks)
    assert layout.pin_more(everything=True) and not layout.unpinned


def bits(layout: Layout) -> np.ndarray:
    """What a snapshot holds, residuals included."""
    found = np.zeros(layout.schema.size, np.float32)
    layout.read(found)
    layout.finish()
    return found


# -- copies -----------------------------------------------------------------------------------------------------


@on_each_device
@pytest.mark.parametrize("pin", [False, True], ids=["pageable", "pinned"])
def test_a_snapshot_is_of_the_moment_it_was_taken_whatever_changes_beside_it(device: str, pin: bool) -> None:
    network = Mixed().to(device)
    layout, region = Layout(network), region_of(Layout(network).schema.size)
    if pin:
        pinned(layout, region)
        assert device == "cpu" or torch.from_numpy(region.buffers[0]).is_pinned()
    expected = bits(Layout(copy.deepcopy(network).cpu()))
    fence = layout.read(region.buffers[0])
    layout.before_step()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1.0)
    settled(device)
    assert fence() and np.array_equal(region.buffers[0], expected)


@on_each_device
@pytest.mark.parametrize("pages", [0, 3, 7])
def test_copies_through_a_pinned_buffer_are_those_of_pinned_memory_bit_for_bit(
    device: str, pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where CUDA pins some pages of the shared memory and refuses the rest."""
    monkeypatch.setattr(pinning, "AT_ONCE", mmap.PAGESIZE)
    network = Mixed().to(device)
    layout, region = Layout(network), region_of(Layout(network).schema.size)
    layout.pin(region)
    for _ in range(pages):
        layout.pin_more()
    expected = bits(Layout(network))
    fence = layout.read(region.buffers[0])
    layout.before_step()
    settled(device)
    assert fence() and np.array_equal(region.buffers[0], expected)
    changes = torch.randn(layout.schema.size, generator=torch.Generator().manual_seed(0))
    region.buffers[1][:] = changes.numpy()
    other = Layout(copy.deepcopy(network))
    layout.add(0, torch.from_numpy(region.buffers[1]))
    other.add(0, changes.clone())
    settled(device)
    assert np.array_equal(bits(layout), bits(other)) and not np.array_equal(bits(layout), expected)


def drained(layout: Layout) -> None:
    layout.add(0, torch.ones(layout.schema.size))


def swapped(layout: Layout) -> None:
    """Compared by pointer: the memory is soon reused."""
    for tensor in layout.tensors:
        tensor.data = tensor.data + 1.0
    for tensor in layout.tensors:
        torch.full_like(tensor, 5.0)


@on_each_device
@pytest.mark.parametrize("change", [drained, swapped])
def test_a_snapshot_is_whole_even_if_no_step_waits_for_it(device: str, change: Callable[[Layout], None]) -> None:
    """Large enough that its copy is still under way."""
    torch.manual_seed(0)
    network = nn.Linear(2048, 4096 if device == "cuda" else 4).to(device)
    layout, region = Layout(network), region_of(Layout(network).schema.size)
    pinned(layout, region)
    expected = bits(layout)
    fence = layout.read(region.buffers[0])
    change(layout)
    settled(device)
    assert fence() and np.array_equal(region.buffers[0], expected) and not np.array_equal(bits(layout), expected)


@on_each_device
def test_a_rank_that_has_pinned_its_own_part_writes_that_and_at_the_end_the_whole(device: str) -> None:
    network = Mixed().to(device)
    layout, region = Layout(network), region_of(Layout(network).schema.size)
    expected = bits(Layout(network))
    pinned(layout, region, 0, 2)
    for ranks in (2, 1):
        fence = layout.read(region.buffers[0], 0, ranks)
        settled(device)
        assert fence()
        for _, _, start, stop in layout.shares(0, ranks):
            assert np.array_equal(region.buffers[0][start:stop], expected[start:stop])
    assert np.array_equal(region.buffers[0], expected)


@on_each_device
def test_moments_are_of_the_moment_they_were_read_whatever_the_next_step_makes_of_them(device: str) -> None:
    network = Mixed().to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    descend(network, optimizer, 1, device)
    layout = Layout(network)
    region, moments = region_of(layout.schema.size), AdamMoments.find(layout, network, [optimizer])
    pinned(layout, region)
    assert moments is not None
    states = [optimizer.state[parameter] for parameter in network.parameters()]
    kept = [{key: state[key].clone() for key in KEYS} for state in states]
    encoder = moments.encoder(region.raw[0])
    assert encoder.step()
    layout.before_step()
    for state in states:
        state["exp_avg"].fill_(7.0), state["exp_avg_sq"].fill_(7.0)
    settled(device)
    assert encoder.fence()
    moments.load(region.raw[0])
    assert moments.finish(1000)
    settled(device)
    for parameter, before in zip(network.parameters(), kept, strict=True):
        now, used = optimizer.state[parameter], before["exp_avg_sq"] > 0
        v, m = (now[key].double()[used].cpu() for key in KEYS)
        wanted_v, wanted_m = (before[key].double()[used].cpu() for key in KEYS)
        assert torch.allclose(v, wanted_v, rtol=0.07, atol=0.0)
        assert float((m / v.sqrt() - wanted_m / wanted_v.sqrt()).abs().max()) < 8 / 254 + 0.03 * 8


@on_each_device
def test_a_device_encodes_as_the_cpu_does_to_one_step_and_decodes_bit_for_bit(device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    v = 10.0 ** torch.empty(1 << 16).uniform_(-12, 2, generator=generator)
    m = v.sqrt() * torch.empty(1 << 16).uniform_(-1, 1, generator=generator)
    here, there = encode(v.clone(), m.clone()), encode(v.to(device), m.to(device))
    assert torch.allclose(here.tops, there.tops.cpu(), rtol=1e-6)
    assert (here.roots.int() - there.roots.cpu().int()).abs().max() <= 1
    for ours, theirs in zip(decode(here), decode(Encoded(*(part.to(device) for part in here))), strict=True):
        assert torch.equal(ours, theirs.cpu())


@on_each_device
def test_what_is_loaded_and_added_is_bit_for_bit_what_it_is_on_the_cpu(device: str) -> None:
    layouts = [Layout(Mixed()), Layout(Mixed().to(device))]
    size = layouts[0].schema.size
    region = region_of(size)
    pinned(layouts[1], region)
    random = np.random.default_rng(3)
    for number in range(4):
        region.buffers[1][:] = random.standard_normal(size).astype(np.float32) * (1.0 if number == 0 else 1e-3)
        for layout in layouts:
            change = layout.load if number == 0 else layout.add
            change(7, torch.from_numpy(region.buffers[1])[7 : size - 11])
        fence = layouts[1].fence()
        settled(device)
        assert fence(), "only then may the daemon use the slot again"
    assert np.array_equal(bits(layouts[0]), bits(layouts[1]))
    for one, other in zip(*(layout.tensors for layout in layouts), strict=True):
        assert torch.equal(one, other.cpu())


# -- a training process -----------------------------------------------------------------------------------------


@pytest.fixture
def daemon(pumped: PumpedDaemon) -> PumpedDaemon:
    return pumped


def submitted(daemon: PumpedDaemon) -> tuple[int, int]:
    """Steps and samples."""
    daemon.pump()
    events = [event for event in daemon.events if isinstance(event, links.Submitted)]
    return sum(event.steps for event in events), sum(event.samples for event in events)


def descend(network: nn.Module, optimizer: torch.optim.Optimizer, number: int, device: str) -> None:
    """A step whose gradients do not depend on a device's arithmetic."""
    generator = torch.Generator().manual_seed(number)
    for parameter in network.parameters():
        gradient = torch.randn(parameter.shape, generator=generator).to(parameter.dtype).to(device)
        if isinstance(parameter, DTensor):
            gradient = DTensor.from_local(gradient, parameter.device_mesh, parameter.placements)
        parameter.grad = gradient
    optimizer.step()
    settled(device)


def stack() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(40, 33), nn.Tanh(), nn.Linear(33, 5))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """`world(device)`: a process group of one rank, NCCL on CUDA, which takes the code path of several."""

    def begin(device: str) -> None:
        if device == "cuda":
            torch.cuda.set_device(0)
        backend = "nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
        monkeypatch.setattr(attaching, "several_ranks", lambda: True)

    yield begin
    if dist.is_initialized():
        dist.destroy_process_group()


@on_each_device
@pytest.mark.parametrize("kind", ["one process", "ddp", "fsdp"])
def test_corrections_and_steps_are_bit_for_bit_those_of_the_cpu(
    daemon: PumpedDaemon, world: Callable[[str], None], device: str, kind: str
) -> None:
    network = stack().to(device)
    replica: nn.Module = network
    if kind != "one process":
        world(device)
    if kind == "fsdp":
        fully_shard(network)
    elif kind == "ddp":
        replica = DistributedDataParallel(network)
    peer = gossipdp.attach(replica, optimizer := torch.optim.SGD(network.parameters(), lr=0.1))
    alone = stack()
    bare = torch.optim.SGD(alone.parameters(), lr=0.1)
    moved = np.linspace(-1, 1, daemon.region.size).astype(np.float32)
    begun = bits(Layout(alone))
    for number in range(12):
        descend(network, optimizer, number, device)
        descend(alone, bare, number, "cpu")
        if number == 4:
            with daemon.lock:
                daemon.mix(moved)
                daemon.seal()
        daemon.pump()
    peer.detach()
    settled(device)
    assert peer.steps == 12 and daemon.drained == 1 and not np.array_equal(begun, bits(Layout(alone)))
    found = [each.full_tensor() if isinstance(each, DTensor) else each for each in network.parameters()]
    vector = np.concatenate([each.detach().cpu().numpy().ravel() for each in found])
    # A correction is added in between, and where floats round it is not seen at the end.
    assert np.allclose(vector, bits(Layout(alone)) + moved, rtol=0, atol=1e-5)
    assert daemon.last is not None
    assert kind != "one process" or np.array_equal(vector, daemon.last), "the last steps are handed over"


class PumpedMoments(PumpedDaemon, MomentsDaemon):
    """Keeps moments, and is pumped by two threads."""


@on_each_device
@pytest.mark.parametrize("mode", ["async", "overlap"])
@pytest.mark.parametrize("kind", ["one process", "ddp"])
def test_no_step_boundary_waits_for_the_device(
    tmp_path: Path, world: Callable[[str], None], device: str, kind: str, mode: str
) -> None:
    """Torch itself reports waits in snapshots, corrections, moments and reports of a loss."""
    daemon = PumpedMoments(tmp_path, every=3, mode=mode, moments_every=1)
    network = Mixed().to(device)
    if kind == "ddp":
        world(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    moved = np.full(Layout(network).schema.size, 0.125, np.float32)
    before = bits(Layout(network))
    with daemon.running():
        peer = gossipdp.attach(network, optimizer, home=tmp_path)
        for number in range(24):
            for parameter in network.parameters():
                parameter.grad = torch.full_like(parameter, (-1.0) ** number)
            loss = torch.full((), float(number), device=device)
            settled(device)
            if device == "cuda":
                torch.cuda.set_sync_debug_mode("error")
            try:
                optimizer.step()
                peer.report(loss=loss)
            finally:
                if device == "cuda":
                    torch.cuda.set_sync_debug_mode("default")
            settled(device)
            if number == 6:
                with daemon.lock:
                    daemon.mix(moved)
                    daemon.seal()
            daemon.pump()
        peer.detach()
    daemon.server.close()
    assert daemon.drained == 1 and daemon.told and daemon.last is not None
    after = bits(Layout(network))
    assert np.allclose(after[: 300 * 70], before[: 300 * 70] + 0.125, rtol=0, atol=0.03)


@on_each_device
@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_the_scaler_skips_are_none(daemon: PumpedDaemon, device: str, fused: bool) -> None:
    network = stack().to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler(device, init_scale=4.0)
    peer = gossipdp.attach(network, optimizer, samples_per_step=3)
    for number in range(8):
        with torch.autocast(device, torch.float16 if device == "cuda" else torch.bfloat16):
            loss = network(torch.ones(3, 40, device=device)).float().square().mean()
        optimizer.zero_grad()
        scaler.scale(loss * torch.inf if number in (1, 2) else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        settled(device)
    peer.detach()
    assert submitted(daemon) == (6, 18)


@on_each_device
def test_a_compiled_model_sees_the_corrections(daemon: PumpedDaemon, device: str) -> None:
    network = stack().to(device)
    # With it every step is a CUDA graph, which must find the parameters where they were.
    options: dict[str, Any] = {"mode": "reduce-overhead"} if device == "cuda" else {"backend": "eager"}
    run = torch.compile(network, **options)
    peer = gossipdp.attach(run, optimizer := torch.optim.SGD(network.parameters(), lr=1e-3))
    inputs = torch.ones(4, 40, device=device)
    before = run(inputs).detach().clone()
    for number in range(10):
        run(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        settled(device)
        if number == 4:
            with daemon.lock:
                daemon.mix(np.full(daemon.region.size, 0.25, np.float32))
                daemon.seal()
        daemon.pump()
    assert daemon.drained == 1 and peer.steps == 10
    with torch.no_grad():
        after = run(inputs).clone()
        assert torch.allclose(after, network(inputs), atol=1e-4) and not torch.allclose(after, before, atol=0.05)
    peer.detach()


# -- whole scripts ----------------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize(
    ("recipe", "ranks"),
    [
        pytest.param("accumulation", 1, marks=needs_a_gpu),  # fp16 with a scaler, there
        *(
            pytest.param(
                recipe, 2, marks=[pytest.mark.gpu, pytest.mark.skipif(GPUS < 2, reason=f"{GPUS} CUDA devices, not 2")]
            )
            for recipe in ("ddp", "fsdp")
        ),
    ],
)
def test_two_peers_of_a_recipe_on_cuda_train_one_model(tmp_path: Path, recipe: str, ranks: int) -> None:
    visible = ",".join(str(number) for number in range(ranks))
    with Pair(tmp_path, ranks=ranks, every=4) as pair:
        pair.train(RECIPES / f"{recipe}_gossip.py", 48, (), {"CUDA_VISIBLE_DEVICES": visible})
        assert pair.exchanges >= 5 and pair.apart() < 0.35
        for peer in pair.peers:
            assert peer.daemon.drained >= 4 and not peer.seen(links.RankLost)
