"""What of a model is not exchanged: copied for the daemon with snapshots, and loaded where the model is loaded.

It holds persistent buffers that are not averaged (integers, flags, complex numbers, empty, excluded and `fitted` ones,
and those that have another shape than at attach), excluded parameters, and what has moved since attach: frozen
parameters, such as a teacher's, and buffers with infinite elements, such as an observer's ranges. All travel exactly,
under every name that `state_dict` gives them. A few elements show whether a tensor has moved, so a frozen base model is
never read or sent. Nothing here knows the daemon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

import torch
from torch import Tensor, nn

from gossipdp.algorithms.ledger import LARGEST
from gossipdp.codecs import named
from gossipdp.codecs.base import PayloadError
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import MOST_CARRIED
from gossipdp.training.messages import log
from gossipdp.training.tensors.reference import NAMES, as_bytes, tensor_of
from gossipdp.training.tensors.schema import local, places, plain_name
from gossipdp.training.tensors.streams import passed

__all__ = ["CarriedState", "StateCopy", "plain", "sample"]

LIGHT: Final = 16 << 20
"""bytes that go with every snapshot; more go with every `SELDOM`th only, so that training is not held up"""
SELDOM: Final = 10
ELEMENTS: Final = 64
"""elements of a tensor that show whether it has moved"""


class StateCopy:
    """A copy of the state, on its way to the daemon.

    Args:
        head: names, dtypes and shapes (`codecs.named`).
        parts: bytes per tensor, on the CPU; complete once `ready` returns True.
        ready: never waits.
        before: the copy before this one.
    """

    def __init__(
        self, head: bytes, parts: Sequence[Tensor], ready: Callable[[], bool], before: StateCopy | None
    ) -> None:
        self._head, self._parts, self.ready, self._before = head, parts, ready, before

    def __iter__(self) -> Iterator[Buffer]:
        yield self._head
        yield from (each.numpy().data for each in self._parts)

    @property
    def new(self) -> bool:
        """True if it differs from the copy before. To be read once, when it is ready."""
        before, self._before = self._before, None
        if before is None or before._head != self._head:
            return True
        return not all(torch.equal(mine, theirs) for mine, theirs in zip(self._parts, before._parts, strict=True))


class CarriedState:
    """The tensors of one model that are kept and not exchanged.

    Args:
        model: unwrapped.
        exchanged: the tensors that the vector holds.
        excluded: names that the script excludes from the vector.
    """

    def __init__(self, model: nn.Module, exchanged: Sequence[Tensor], excluded: frozenset[str]) -> None:
        self._model, self._excluded = model, excluded
        taken = {_ptr(each) for each in exchanged}
        full = ((name, each) for name, each in _buffers(model) if plain(each) and each.numel())
        self._averaged = {name: each.shape for name, each in full if _ptr(each) in taken}
        """shapes of the buffers that are averaged"""
        self._open = {name: ~(each.abs() <= LARGEST) for name, each in _buffers(model) if self._is_open(name, each)}
        """per exchanged buffer: the elements that are not exchanged, because they were infinite (`Reference`)"""
        self._first = {name: sample(each) for name, each in self._movable()}
        """a few elements of each frozen parameter and open buffer, at attach"""
        self._moved: set[str] = set()
        self._looking: list[tuple[list[str], Tensor, Callable[[], bool]]] = []
        """names, whether each has moved, and whether that is known yet"""
        self._last: StateCopy | None = None
        self._rounds = -1
        self._warned = False

    def copy(self, *, now: bool = False) -> StateCopy | None:
        """Copy the state. None if it is not due.

        Args:
            now: copy it even if it is not due.
        """
        tensors = dict(self._tensors())
        size = sum(each.numel() * each.element_size() for each in tensors.values())
        self._rounds += 1
        if size > MOST_CARRIED // 2:
            if not self._warned:
                log.warning("joiners do not get %.1f GB of buffers and moved parameters: too much to send", size / 1e9)
            self._warned = True
            return None
        if not now and size > LIGHT and self._rounds % SELDOM:
            return None
        head = named.header((name, NAMES[each.dtype], tuple(each.shape)) for name, each in tensors.items())
        parts, ready = _copied([*tensors.values()])
        self._last = StateCopy(head, parts, ready, self._last)
        return self._last

    def resend(self) -> None:
        """The daemon refused the snapshot of the last copy: the next copy counts as new."""
        self._last = None

    @torch.no_grad()
    def load(self, data: Buffer) -> None:
        """Load another peer's state, as far as this model has such tensors."""
        try:
            found = named.unpack(data)
        except PayloadError as error:
            log.warning("the network's carried state cannot be read: %s", error)
            return
        buffers = dict(_buffers(self._model))
        here = {**buffers, **dict(self._excluded_parameters()), **dict(self._movable())}
        strange, frozen = sorted(found.keys() - here.keys()), dict(self._movable()).keys() - buffers.keys()
        if moved := sorted(found.keys() & frozen):
            log.info("the source of the model has changed %d frozen parameters, the first is %s", len(moved), moved[0])
        for name in found.keys() & here.keys():
            value, tensor = tensor_of(found[name]), here[name]
            if value is not None and name in buffers:
                _resize(tensor, value)
            if value is None or value.shape != tensor.shape or value.dtype != tensor.dtype:
                strange.append(name)
                continue
            value = value.to(tensor.device)
            tensor.copy_(torch.where(self._open[name], value, tensor) if self._is_as_open(name, tensor) else value)
            if name in self._first:
                self._moved.add(name)
        if strange:
            log.warning("this model lacks %d tensors of the network's state, the first is %s", len(strange), strange[0])

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        """What a copy holds now."""
        yield from self._buffers()
        yield from self._excluded_parameters()
        movable = dict(self._movable())
        self._look(movable)
        yield from ((name, each) for name, each in movable.items() if name in self._moved)

    def _look(self, movable: dict[str, Tensor]) -> None:
        """Find out which tensors have moved. On CUDA that is known at the next look, so that nothing waits."""
        if not self._looking:
            by_device: dict[torch.device, list[str]] = {}
            for name in sorted(self._first.keys() & movable.keys() - self._moved):
                by_device.setdefault(movable[name].device, []).append(name)
            for device, names in by_device.items():
                flags = torch.stack([(sample(movable[name]) != self._first[name].to(device)).any() for name in names])
                (copy,), ready = _copied([flags])
                self._looking.append((names, copy, ready))
        if all(ready() for *_, ready in self._looking):
            for names, flags, _ in self._looking:
                self._moved.update(name for name, flag in zip(names, flags.tolist(), strict=True) if flag)
            self._looking.clear()

    def _buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Those that are not averaged, or no more because they have another shape."""
        for name, each in _buffers(self._model):
            if plain(each) and self._averaged.get(name) != each.shape:
                yield name, each

    def _excluded_parameters(self) -> Iterator[tuple[str, Tensor]]:
        out = self._out()
        yield from ((name, each) for name, each in _parameters(self._model) if each in out and plain(each))

    def _is_open(self, name: str, buffer: Tensor) -> bool:
        """True if the buffer is exchanged, and some of its elements are infinite or NaN."""
        exchanged = name in self._averaged and name not in self._excluded
        return exchanged and plain(buffer) and buffer.is_floating_point() and not bool((buffer.abs() <= LARGEST).all())

    def _is_as_open(self, name: str, buffer: Tensor) -> bool:
        """True if this buffer has open elements, in the shape that it had at attach."""
        return name in self._open and self._open[name].shape == buffer.shape and plain(buffer)

    def _movable(self) -> Iterator[tuple[str, Tensor]]:
        """Frozen parameters and open buffers."""
        yield from ((name, each) for name, each in _buffers(self._model) if self._is_as_open(name, each))
        out = self._out()
        for name, parameter in _parameters(self._model):
            if not parameter.requires_grad and parameter not in out and plain(parameter):
                yield name, parameter

    def _out(self) -> set[nn.Parameter]:
        """The excluded parameters. `self._excluded` has the first name of each."""
        return {each for name, each in self._model.named_parameters() if plain_name(name) in self._excluded}


def _buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The persistent buffers, under every name."""
    for name, module, key in places(model, every_name=True):
        if (buffer := module._buffers[key]) is not None:
            yield name, buffer


def _parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters, under every name."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield plain_name(name), parameter


def _ptr(tensor: Tensor) -> int:
    return local(tensor).data_ptr()


def _resize(buffer: Tensor, value: Tensor) -> None:
    """Give a buffer of at most one element the shape of `value`, as observers do in a forward pass."""
    if type(buffer) is Tensor and buffer.numel() <= 1 and buffer.shape != value.shape and buffer.dtype == value.dtype:
        with suppress(RuntimeError):  # its storage may not be resizable
            buffer.resize_(value.shape)


def plain(tensor: Tensor) -> bool:
    """True if the tensor's own memory holds all its numbers: it is dense, not sharded or packed."""
    kind = type(tensor) in (Tensor, nn.Parameter)
    return kind and tensor.layout is torch.strided and not tensor.is_meta and tensor.dtype in NAMES


@torch.no_grad()
def sample(tensor: Tensor) -> Tensor:
    """A few elements spread over the tensor, as bytes."""
    if tensor.is_contiguous():
        flat = tensor.detach().view(-1)
        return as_bytes(flat[:: max(1, flat.numel() // ELEMENTS)]).clone()
    return as_bytes(tensor.detach()[tuple(slice(0, 8) for _ in tensor.shape)]).clone()


@torch.no_grad()
def _copied(tensors: Sequence[Tensor]) -> tuple[list[Tensor], Callable[[], bool]]:
    """The tensors' bytes on the CPU, and whether they are complete. Nothing waits for a device."""
    parts: list[Tensor] = []
    for tensor in tensors:
        flat = as_bytes(tensor)
        if flat.is_cuda:
            copy = torch.empty(flat.shape, dtype=torch.uint8, device="cpu", pin_memory=True)
            parts.append(copy.copy_(flat, non_blocking=True))
        else:
            parts.append(flat.cpu().clone())
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}
    events = [torch.cuda.current_stream(device).record_event() for device in devices]
    return parts, (lambda: all(event.query() for event in events)) if events else passed
