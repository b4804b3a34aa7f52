"""Moments are encoded in parts, at several step boundaries and on several ranks."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from gossipdp.codecs import moments as codec
from gossipdp.runtime import link as links
from gossipdp.training.optimizer_state import encoder
from gossipdp.training.optimizer_state.adam import AdamMoments
from gossipdp.training.optimizer_state.encoder import KEYS, Torn, spans_of, torn_values
from gossipdp.training.tensors.blocks import encoded_elements, torn
from gossipdp.training.tensors.layout import Layout
from simulations.processes.progress import until
from tests.codecs.moments_reference import decoded
from tests.training.moments_daemon import MomentsDaemon
from tests.training.optimizer_state.inheritance import adam, attach, die, flat, model_of, train

Daemons = Callable[..., MomentsDaemon]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> int:
    """At each step boundary a fourth of the moments is encoded, block by block. Returns the number of boundaries."""
    monkeypatch.setattr(encoder, "CPU_PIECE", 256)
    monkeypatch.setattr(encoder, "CPU_LEAST", 256)
    monkeypatch.setattr(encoder, "BOUNDARIES", 4)
    return 4


def submitted(daemon: MomentsDaemon) -> list[int]:
    """Steps of each snapshot."""
    return [event.steps for event in daemon.events if isinstance(event, links.Submitted)]


def train_to_the_middle(daemon: MomentsDaemon, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Train until the first moments are encoded in part."""
    for step in itertools.count():
        train(model, optimizer, 1, daemon, seed=step)
        if submitted(daemon):
            break
    train(model, optimizer, 2, daemon)
    assert not daemon.told


def test_no_snapshot_is_taken_before_the_last_part_and_none_is_lost(daemons: Daemons, slow: int) -> None:
    daemon, model = daemons(every=3, moments_every=2), model_of()
    optimizer = adam(model)
    attach(daemon, model, optimizer)
    for step in range(60):
        train(model, optimizer, 1, daemon, seed=step)
    steps = submitted(daemon)
    # Every second snapshot is due after three steps, and waits for the fourth part and the daemon.
    assert len(daemon.told) > 6 and set(steps[::2]) == {3} and set(steps[1::2]) == {slow + 1}
    assert sum(steps) == daemon.clock >= 56


def test_parts_are_whole_blocks_of_both_moments_at_one_step(daemons: Daemons, slow: int) -> None:
    """Each block has the moments of some step among those in which it was encoded."""
    daemon, model = daemons(every=3), model_of()
    optimizer = adam(model)
    attach(daemon, model, optimizer)
    history = list[dict[str, np.ndarray]]()
    while not daemon.told:
        train(model, optimizer, 1, seed=len(history))
        states = [optimizer.state[each] for each in model.parameters()]
        history.append({key: np.concatenate([state[key].numpy().ravel() for state in states]) for key in KEYS})
        daemon.pump()
    assert daemon.held is not None and daemon.schema is not None
    chunks = [np.frombuffer(chunk.payload, np.uint8) for chunk in daemon.held.chunks]
    found = [decoded(chunk, size) for chunk, size in zip(chunks, (8192, daemon.schema.trainable - 8192), strict=True)]
    m, v = (np.concatenate(parts)[: len(history[0]["exp_avg"])] for parts in zip(*found, strict=True))
    steps = set[int]()
    for start in range(0, len(m), 256):
        block, errors = slice(start, start + 256), list[float]()
        for then in history:
            root = np.sqrt(then["exp_avg_sq"][block]) + 1e-12
            apart = np.abs(np.sqrt(v[block]) / root - 1.0).max() + np.abs(
                m[block] / root - then["exp_avg"][block] / root
            )
            errors.append(float(apart.max()))
        steps.add(int(np.argmin(errors)))
        assert min(errors) < 0.15
    assert len(steps) > 1, "not all of one step"


def test_daemon_that_dies_in_the_middle_gets_nothing_and_the_next_one_gets_all(daemons: Daemons, slow: int) -> None:
    daemon, model = daemons(every=3), model_of()
    optimizer = adam(model)
    attach(daemon, model, optimizer)
    train_to_the_middle(daemon, model, optimizer)
    daemon.server.close()
    again = daemons(every=3, anchor=daemon.a)
    for step in range(300):
        train(model, optimizer, 1, again, seed=step)
        if again.told:
            break
    assert again.told and again.held is not None and submitted(again)
    # The process counts transfers on; the second daemon has heard of no part of the first one.
    assert again.held.steps >= 8


def test_process_that_leaves_in_the_middle_hands_over_its_last_steps(daemons: Daemons, slow: int) -> None:
    daemon, model = daemons(every=3), model_of()
    optimizer = adam(model)
    peer = attach(daemon, model, optimizer)
    train_to_the_middle(daemon, model, optimizer)
    with daemon.running():
        peer.detach()
    daemon.pump()
    assert not daemon.told and sum(submitted(daemon)) == peer.steps
    assert daemon.last is not None and np.array_equal(daemon.last[: flat(model).size], flat(model))


def test_process_that_dies_in_the_middle_leaves_the_moments_before(daemons: Daemons, slow: int) -> None:
    daemon, model = daemons(every=3), model_of()
    optimizer = adam(model)
    peer = attach(daemon, model, optimizer)
    train_to_the_middle(daemon, model, optimizer)
    die(peer)
    daemon.pump()
    assert daemon.held is None and not daemon.told


def test_state_that_is_loaded_in_the_middle_is_encoded_from_the_start(daemons: Daemons, slow: int) -> None:
    daemon, model = daemons(every=3), model_of()
    optimizer = adam(model)
    attach(daemon, model, optimizer)
    train_to_the_middle(daemon, model, optimizer)
    state = optimizer.state_dict()
    for each in state["state"].values():
        each["exp_avg_sq"] = torch.full_like(each["exp_avg_sq"], 1e6)
    optimizer.load_state_dict(state)
    while not daemon.told:
        train(model, optimizer, 1, daemon)
    assert daemon.held is not None and daemon.schema is not None
    first = decoded(np.frombuffer(daemon.held.chunks[0].payload, np.uint8), 8192)[1]
    assert first.min() > 8e5, "no block is of the state before"


def test_mode_sync_leaves_no_part_for_later(daemons: Daemons, slow: int) -> None:
    """The round could not go on, because the daemon needs the shared buffer."""
    daemon, model = daemons(every=4, mode="sync", settles=lambda daemon: None, deadline=1000.0), model_of()
    optimizer = adam(model)
    attach(daemon, model, optimizer)
    with daemon.running():
        until("moments come twice", lambda: len(daemon.told) >= 2, meanwhile=lambda: train(model, optimizer, 4))


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_ranks_together_write_what_one_process_writes(ranks: int) -> None:
    """Blocks in which the parts of two ranks meet are summed, and the first rank encodes them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 7), nn.Linear(7, 50), nn.BatchNorm1d(50), nn.Linear(50, 340))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    layout = Layout(model)
    moments = AdamMoments.find(layout, model, [optimizer])
    assert moments is not None
    one, several = (np.zeros(-(-4 * layout.schema.size // 4096) * 4096, np.uint8) for _ in range(2))
    assert moments.encoder(one).step()
    spans = [spans_of(layout, rank, ranks) for rank in range(ranks)]
    starts = sorted({start for mine in spans for start in torn(layout.schema, mine)})
    assert len(starts) == ranks - 1
    values = torch.zeros(2, len(starts), 256)
    for mine in spans:
        values += torn_values(layout, moments, mine, starts)
    for rank in range(ranks):
        alone = np.full_like(one, 77)
        assert moments.encoder(alone, rank, ranks).step(everything=True)
        shares = [(start, stop) for *_, start, stop in layout.shares(rank, ranks)]
        for start, stop in encoded_elements(layout.schema, shares):
            alone[4 * start : 4 * stop] = 77
        assert (alone == 77).all(), "it writes what it has pinned"
        assert moments.encoder(several, rank, ranks, Torn(starts, values) if rank == 0 else None).step(everything=True)
    assert np.array_equal(one, several) and codec.check(one[: codec.payload_bytes(8192)].data, 8192)
