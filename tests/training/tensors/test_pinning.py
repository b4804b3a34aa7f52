"""What of the shared memory is pinned, when, and how copies go elsewhere, as far as that shows without a device."""

import logging
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from gossipdp.training.tensors import pinning
from gossipdp.training.tensors.layout import Layout
from gossipdp.training.tensors.pinning import NEAR, Bounce, Pins, page_ranges, sections
from gossipdp.training.tensors.streams import SideStreams

DEVICE = torch.device("cuda", 1)
PAGE = mmap.PAGESIZE
FAR = 2 * NEAR // 4
"""elements between two ranges that are not pinned together"""


class Runtime:
    """CUDA's, as far as pinning goes; a call fails once `full` bytes are held. It knows which device is current."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, full: int = 1 << 40) -> None:
        self.full, self.held = full, dict[int, int]()
        self.current = 0
        monkeypatch.setattr(torch.cuda, "cudart", lambda: self)
        monkeypatch.setattr(torch.cuda, "device", self._switched)

    @contextmanager
    def _switched(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device.index
        yield
        self.current = before

    def cudaHostRegister(self, address: int, length: int, flags: int) -> int:
        assert length and self.current == DEVICE.index, "rank 1 begins nothing on the device of rank 0"
        if sum(self.held.values()) + length > self.full:
            return 2
        self.held[address] = length
        return 0

    def cudaHostUnregister(self, address: int) -> None:
        assert self.current == DEVICE.index
        del self.held[address]


def mapped(size: int = 4 * NEAR) -> np.ndarray:
    return np.frombuffer(mmap.mmap(-1, size), np.float32)


def pinned(memory: torch.Tensor) -> bool:
    return all(inside for _, _, inside in sections(memory))


def all_pinned(vector: np.ndarray, *spans: tuple[int, int]) -> Pins:
    pins = Pins()
    pins.want([vector], spans, DEVICE)
    assert pins.step()
    return pins


# -- what is pinned, and when -----------------------------------------------------------------------------------


def test_whole_pages_are_pinned_none_twice_and_near_ones_in_one_go() -> None:
    page = mmap.PAGESIZE
    elements = page // 4
    assert page_ranges(10 * page, [(0, 1), (1, elements + 1)]) == [(10 * page, 2 * page)]
    far = (NEAR + 3 * page) // 4
    assert page_ranges(page, [(far, far + 5), (0, 5)]) == [(page, page), (page + 4 * far // page * page, page)]
    near = NEAR // 8
    assert page_ranges(0, [(near, near + 5), (0, 5)]) == [(0, (4 * near // page + 1) * page)]
    assert page_ranges(0, []) == []
    assert page_ranges(page, [(0, 0), (far, far), (0, 5)]) == [(page, page)], "a rank may hold nothing of a tensor"


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_rank_pins_what_it_moves(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    model = nn.Sequential(nn.Linear(1000, 1000), nn.BatchNorm1d(1000))
    layouts = [Layout(model) for _ in range(ranks)]
    nothing = np.zeros(0, np.float32)
    region: Any = SimpleNamespace(buffers=(nothing, nothing))
    asked: list[list[tuple[int, int]]] = []
    monkeypatch.setattr(Pins, "want", lambda pins, vectors, spans, device: asked.extend([spans] * len(vectors)))
    for rank, layout in enumerate(layouts):
        monkeypatch.setattr(layout, "_devices", lambda: [torch.device("cuda", 0)])
        layout.pin(region, rank, ranks)
    assert len(asked) == 2 * ranks, "of both buffers"
    size, counts, moved = layouts[0].schema.size, list[int](), 0
    for rank, spans in enumerate(asked[::2]):
        pinned = np.zeros(size, bool)
        for start, stop in spans:
            pinned[start:stop] = True
        shares = [(start, stop) for *_, start, stop in layouts[0].shares(rank, ranks)]
        assert all(pinned[start:stop].all() for start, stop in shares)
        moved += sum(stop - start for start, stop in shares)
        counts.append(int(pinned.sum()))
    assert moved == sum(tensor.numel() for tensor in layouts[0].tensors)
    # Encoded moments stand elsewhere in the buffer, and take half of the memory.
    assert max(counts) <= (1 if ranks == 1 else 1.51) * size / ranks + 4000


def test_memory_is_pinned_as_long_as_it_is_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, vector = Runtime(monkeypatch), mapped()
    pins = all_pinned(vector, (0, 10), (FAR, FAR + 10))
    assert runtime.held == dict(page_ranges(vector.ctypes.data, [(0, 10), (FAR, FAR + 10)])) and not pins.refused
    del vector
    assert not runtime.held


def test_a_step_boundary_pins_a_part_and_what_is_gone_by_then_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinning, "AT_ONCE", 2 * NEAR)
    runtime, first, second = Runtime(monkeypatch), mapped(5 * NEAR), mapped(5 * NEAR)
    pins = Pins()
    pins.want([first, second], [(0, 5 * NEAR // 4)], DEVICE)
    assert not runtime.held, "not before the next boundary"
    held = []
    for _ in range(3):
        assert not pins.step()
        held.append(sum(runtime.held.values()))
    assert held == [2 * NEAR, 4 * NEAR, 5 * NEAR], "the last part of the first vector does not fit with the next one"
    assert list(sections(torch.from_numpy(first))) == [
        (0, NEAR // 2, True), (NEAR // 2, NEAR, True), (NEAR, 5 * NEAR // 4, True)
    ]  # fmt: skip
    assert not pinned(torch.from_numpy(second))
    del second
    assert pins.step() and sum(runtime.held.values()) == 5 * NEAR
    pins.want([third := mapped(NEAR)], [(0, NEAR // 4)], DEVICE)
    assert pins.step() and pinned(torch.from_numpy(third))


def test_memory_that_cuda_does_not_pin_is_a_warning_and_a_number_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pinning, "AT_ONCE", NEAR)
    runtime, launched = Runtime(monkeypatch, full=NEAR), []

    def launch(*_: object, device: torch.device) -> None:
        launched.append(device)
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch, "zeros", launch)
    vector, pins = mapped(), Pins()
    pins.want([vector], [(0, NEAR)], DEVICE)
    with caplog.at_level(logging.WARNING, "gossipdp.training"):
        assert not pins.step() and pins.step() and pins.step()
    assert pins.refused == 3 * NEAR and caplog.text.count("GD-508") == 1
    assert launched == [DEVICE], "the error of a call that failed is taken here, not by the next kernel"
    assert list(sections(torch.from_numpy(vector))) == [(0, NEAR // 4, True), (NEAR // 4, NEAR, False)]
    pins.want([vector], [], DEVICE)
    assert pins.step() and not pins.refused, "counted anew where the next daemon shares its memory"
    assert list(runtime.held.values()) == [NEAR]


def test_a_slice_is_pinned_if_all_of_it_is_wherever_its_vector_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank pins its part, which seldom begins where the memory begins."""
    Runtime(monkeypatch)
    vector = mapped()
    all_pinned(vector, (FAR, FAR + 5000))
    flat = torch.from_numpy(vector)
    assert pinned(flat[FAR : FAR + 5000]) and pinned(flat[FAR + 4999 : FAR + 5000])
    assert not pinned(flat[:10]) and not pinned(flat[FAR : FAR + 50_000])
    assert not pinned(flat[FAR : FAR + 5000].clone())
    edge = -(-4 * (FAR + 5000) // PAGE) * PAGE // 4
    assert [(start, inside) for start, _, inside in sections(flat[: FAR + 9000])] == [
        (0, False), (FAR // (PAGE // 4) * (PAGE // 4), True), (edge, False)
    ]  # fmt: skip
    assert list(sections(flat[:0])) == []


def test_memory_that_is_gone_is_not_pinned_and_a_forked_child_leaves_it_to_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = Runtime(monkeypatch)
    memory = torch.zeros(100_000)
    vector = memory.numpy()
    all_pinned(vector, (0, 100_000))
    assert pinned(memory)
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        del vector
    assert runtime.held and not pinned(memory)


# -- copies -----------------------------------------------------------------------------------------------------


class Device:
    """A device whose copies happen as late as they may: when the event behind them is waited for."""

    def __init__(self) -> None:
        self.begun: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.waited = 0

    def mark(self, _: torch.device) -> Any:
        begun, self.begun = self.begun, []

        def synchronize() -> None:
            self.waited += 1
            for into, values in begun:
                into.copy_(values)

        return SimpleNamespace(synchronize=synchronize)


class Late(torch.Tensor):
    """A buffer to which a device copies."""

    device_of: Device

    def copy_(self, values: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:  # type: ignore[override]
        if not non_blocking:
            return super().copy_(values)
        self.device_of.begun.append((self.as_subclass(torch.Tensor), values))
        return self

    def __getitem__(self, at: Any) -> torch.Tensor:
        part = super().__getitem__(at)
        part.device_of = self.device_of  # type: ignore[attr-defined]
        return part

    def view(self, *shape: Any) -> torch.Tensor:
        part = super().view(*shape)
        part.device_of = self.device_of  # type: ignore[attr-defined]
        return part


def bounce(device: Device, size: int) -> Bounce:
    buffers = [torch.full((size,), torch.nan).as_subclass(Late) for _ in range(2)]
    for buffer in buffers:
        buffer.device_of = device
    return Bounce((buffers[0], buffers[1]), device.mark)


def test_values_of_a_device_come_through_two_buffers_and_wait_for_no_more_than_one() -> None:
    device, size = Device(), 100
    through = bounce(device, size)
    values, into = torch.arange(450.0), torch.full((450,), -1.0)
    waits = []
    for start in range(0, 450, size):
        through.store(values[start : start + size], into[start : start + size])
        waits.append(device.waited)
    assert waits == [0, 0, 1, 2, 3] and torch.equal(into[:300], values[:300]) and bool((into[300:] == -1.0).all())
    through.finish()
    assert torch.equal(into, values) and device.waited == 5
    through.finish()
    assert device.waited == 5, "nothing is under way"


def test_bytes_go_through_the_same_buffers() -> None:
    through = bounce(Device(), 10)
    values, into = torch.arange(100, dtype=torch.uint8), torch.zeros(100, dtype=torch.uint8)
    for start in range(0, 100, 40):
        through.store(values[start : start + 40], into[start : start + 40])
    through.finish()
    assert torch.equal(into, values)
    with through.holding(values[:40], torch.device("cpu")) as source:
        assert torch.equal(source, values[:40])


def test_values_for_a_device_stay_in_the_buffer_until_it_has_read_them() -> None:
    device, size = Device(), 100
    through, there = bounce(device, size), torch.zeros(300)
    for start in range(0, 300, size):
        values = torch.arange(float(start), float(start + size))
        with through.holding(values, torch.device("cpu")) as source:
            values.fill_(-1.0)  # the daemon may use its memory again
            device.begun.append((there[start : start + size], source))
    through.finish()
    assert torch.equal(there, torch.arange(300.0))


class Foreign(torch.Tensor):
    """A tensor on the CPU that says it is on CUDA."""

    is_cuda = True  # type: ignore[assignment]


def test_one_copy_never_reaches_over_memory_that_is_pinned_and_memory_that_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Runtime(monkeypatch)
    vector = mapped()
    all_pinned(vector, (FAR, FAR + PAGE // 4))
    streams, stored, length = SideStreams(), list[tuple[int, int]](), FAR + PAGE
    kept = SimpleNamespace(store=lambda part, into: (stored.append((len(part), len(into))), into.copy_(part)))
    monkeypatch.setattr(streams, "_bouncing", lambda: kept)
    values = torch.arange(float(length)).as_subclass(Foreign)
    streams.store(values, torch.from_numpy(vector)[:length])
    assert stored == [(FAR, FAR), (length - FAR - PAGE // 4, length - FAR - PAGE // 4)]
    assert np.array_equal(vector[:length], np.arange(length, dtype=np.float32))


def test_where_nothing_can_be_pinned_copies_are_plain(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object, **options: object) -> torch.Tensor:
        assert options["pin_memory"]
        raise RuntimeError("CUDA error: out of memory")

    streams, values = SideStreams(), torch.arange(10.0).as_subclass(Foreign)
    monkeypatch.setattr(torch, "empty", refused)
    into, there = torch.zeros(10), torch.zeros(10).as_subclass(Foreign)
    with caplog.at_level(logging.WARNING, "gossipdp.training"):
        streams.store(values, into)
        streams.send(torch.arange(10.0), there)
    assert torch.equal(into, torch.arange(10.0)) and torch.equal(cast(torch.Tensor, there), into)
    assert caplog.text.count("cannot pin any memory") == 1
