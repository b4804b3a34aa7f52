"""State that is not exchanged: what is copied, and what another peer loads."""

import logging
from typing import Any

import pytest
import torch
from torch import nn

from gossipdp.codecs import named
from gossipdp.errors import ConfigError
from gossipdp.training.tensors import carried as beside
from gossipdp.training.tensors.carried import StateCopy
from gossipdp.training.tensors.excluded import excluded_names
from gossipdp.training.tensors.layout import Layout


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(8, 8), nn.Linear(8, 8).requires_grad_(False)
        self.base = nn.Linear(64, 64).requires_grad_(False)
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("initialized", torch.zeros((), dtype=torch.uint8))
        self.register_buffer("allowed", torch.zeros(3, dtype=torch.bool))
        self.register_buffer("phases", torch.zeros(2, dtype=torch.complex64))
        self.register_buffer("queue", torch.zeros(4, 6).t())
        self.register_buffer("scratch", torch.zeros(5, dtype=torch.int64), persistent=False)

    def move(self) -> None:
        """As training does, `.data` and all."""
        self.initialized.fill_(1)
        self.allowed[1] = True
        self.phases[0] = 1 + 2j
        self.norm.num_batches_tracked += 7
        self.queue[:, 2] = torch.arange(6.0)
        for each in self.teacher.parameters():
            each.data.mul_(0.5).add_(1.0)


def layout_of(model: nn.Module, *excluded: str) -> Layout:
    return Layout(model, frozenset(excluded))


def told(layout: Layout, **options: Any) -> StateCopy:
    found = layout.carried.copy(**options)
    assert found is not None and found.ready()
    return found


def names(of: StateCopy) -> set[str]:
    return set(named.unpack(b"".join(of)))


OTHERS = {"initialized", "allowed", "phases", "norm.num_batches_tracked"}


def test_integers_flags_complex_numbers_and_what_is_excluded_travel_exactly_and_so_does_a_teacher_that_moved() -> None:
    giver, taker = Stateful(), Stateful()
    one, two = layout_of(giver, "queue"), layout_of(taker, "queue")
    assert "queue" not in [entry.name for entry in one.schema.entries] and one.schema.excluded == ("queue",)
    giver.move()
    state = told(one)
    assert names(state) == OTHERS | {"queue", "teacher.weight", "teacher.bias"}, "and not the base, which stood still"
    two.carried.load(b"".join(state))
    for name in [*OTHERS, "queue", "teacher.weight", "teacher.bias"]:
        assert torch.equal(taker.state_dict()[name], giver.state_dict()[name]), name
    assert names(told(two)) == names(state), "a peer that loaded a teacher sends it on"


class Scaled(nn.Module):
    """Its buffer is an integer alone."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.frozen = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3), requires_grad=False)
        self.queue = nn.Parameter(torch.ones(3))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))


def shared_twice() -> nn.Module:
    shared = Scaled()
    return nn.ModuleDict({"one": shared, "two": nn.Sequential(nn.Identity(), shared)})


def test_frozen_parameters_that_another_member_moved_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """No witness can confirm them: each replica has its own."""
    giver, taker = Stateful(), Stateful()
    one, two = layout_of(giver), layout_of(taker)
    caplog.set_level(logging.INFO, "gossipdp")
    two.carried.load(b"".join(told(one, now=True)))
    assert not caplog.messages
    giver.move()
    two.carried.load(b"".join(told(one, now=True)))
    assert caplog.messages == ["the source of the model has changed 2 frozen parameters, the first is teacher.bias"]


def test_state_of_a_module_with_two_names_is_told_under_both() -> None:
    giver, taker = shared_twice(), shared_twice()
    one, two = layout_of(giver, "one.queue"), layout_of(taker, "one.queue")
    assert {entry.name for entry in one.schema.entries} == {"one.scale"}
    for tensor in (giver["one"].calls, giver["one"].frozen, giver["one"].queue):
        tensor.data.add_(5)
    state = told(one)
    assert names(state) == {f"{place}.{key}" for place in ("one", "two.1") for key in ("calls", "frozen", "queue")}
    two.carried.load(b"".join(state))
    assert all(torch.equal(value, taker.state_dict()[name]) for name, value in giver.state_dict().items())


def test_empty_buffers_are_told__one_that_has_grown_takes_its_shape() -> None:
    giver, taker = nn.Linear(2, 2), nn.Linear(2, 2)
    for model in (giver, taker):
        model.register_buffer("seen", torch.zeros(0, dtype=torch.int64))
        model.register_buffer("bank", torch.zeros(0, 4))
    one, two = layout_of(giver), layout_of(taker)
    assert names(told(one)) == {"seen", "bank"}
    giver.bank = torch.ones(0, 8)
    giver.seen = torch.tensor([3, 4])
    two.carried.load(b"".join(told(one)))
    assert taker.seen.tolist() == [3, 4] and taker.bank.shape == (0, 8)
    two.carried.load(named.header([("bank", "F32", (1 << 39, 1 << 39, 0))]))
    assert taker.bank.shape == (0, 8), "torch holds no such sizes"


def test_state_that_is_the_same_as_before_is_not_told_again() -> None:
    model = Stateful()
    layout = layout_of(model)
    assert told(layout).new and not told(layout).new
    model.allowed[2] = True
    assert told(layout).new


def test_much_state_is_told_with_every_tenth_snapshot_and_at_once_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(beside, "LIGHT", 1)
    layout = layout_of(Stateful())
    assert [layout.carried.copy() is not None for _ in range(21)] == [n % 10 == 0 for n in range(21)]
    assert layout.carried.copy(now=True) is not None


def test_state_of_another_shape_or_unreadable_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    model = Stateful()
    layout = layout_of(model)
    with caplog.at_level(logging.WARNING, "gossipdp.training"):
        layout.carried.load(named.header([("allowed", "BOOL", (4,)), ("strange", "U8", (1,))]) + bytes(5))
        layout.carried.load(b"\x01")
    assert "this model lacks 2 tensors of the network's state" in caplog.text
    assert "cannot be read" in caplog.text and not model.allowed.any()


@pytest.mark.parametrize(
    ("exclude", "found"),
    [
        ((), set()),
        ("queue", {"queue"}),
        (["queue", "norm.*"], {"queue", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var",
                               "norm.num_batches_tracked"}),
        (lambda name, tensor: tensor.dim() == 2 and name.startswith("student"), {"student.weight"}),
    ],
)  # fmt: skip
def test_excluded_tensors_are_those_of_names_patterns_or_a_function(exclude: Any, found: set[str]) -> None:
    assert excluded_names(Stateful(), exclude) == found


def test_a_pattern_that_means_no_tensor_is_refused() -> None:
    with pytest.raises(ConfigError, match="GD-303") as caught:
        excluded_names(Stateful(), ["queue", "quueue"])
    assert "quueue" in caught.value.seen


def test_an_excluded_parameter_is_not_in_the_vector_and_travels_exactly() -> None:
    giver, taker = Stateful(), Stateful()
    one, two = layout_of(giver, "student.bias"), layout_of(taker, "student.bias")
    assert "student.bias" not in [entry.name for entry in one.schema.entries]
    two.carried.load(b"".join(told(one)))
    assert torch.equal(taker.student.bias, giver.student.bias)
    assert not torch.equal(taker.student.weight, giver.student.weight)


def test_buffer_whose_elements_were_infinite_at_attach__travels_exactly_once_it_has_moved() -> None:
    def observer() -> nn.Module:
        model = nn.Linear(2, 2)
        model.register_buffer("ranges", torch.tensor([torch.inf, -torch.inf, 3.0]))
        model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
        return model

    giver, taker = observer(), observer()
    one, two = layout_of(giver), layout_of(taker)
    assert names(told(one)) == set(), "a mask stands still"
    giver.ranges.copy_(torch.tensor([-0.5, 0.7, 4.0]))
    state = told(one)
    assert names(state) == {"ranges"}
    two.carried.load(b"".join(state))
    assert torch.equal(taker.ranges, torch.tensor([-0.5, 0.7, 3.0])), "the element that was finite is averaged"
    assert names(told(two)) == {"ranges"}, "the taker tells it, too"
