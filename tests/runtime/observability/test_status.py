"""The status of a peer, from the events it was fed."""

import math
import types
from typing import Any

import pytest

from gossipdp.codecs import CODECS
from gossipdp.protocol.events import ExchangeEnded, Notice
from gossipdp.runtime.observability.status import Status

PARTNER = bytes([2]) * 32
SIZE, TRAINABLE = 16_000, 15_000


@pytest.fixture
def status() -> Status:
    model = types.SimpleNamespace(schema=types.SimpleNamespace(size=SIZE, trainable=TRAINABLE))
    view: Any = types.SimpleNamespace(model=model)
    transport: Any = types.SimpleNamespace()
    return Status(view, transport, "network")


def ended(result: str, chunks: int, received: int, escalation_bytes: int = 0) -> ExchangeEnded:
    return ExchangeEnded(
        partner=PARTNER, exchange=7, initiator=True, result=result, codec="modulo4", chunks=chunks, of=16,
        distance=0.02 if chunks else math.nan, clipped=0, blocks=10 * chunks, escalated=chunks,
        escalation_bytes=escalation_bytes, sent=500, received=received, duration=0.7,
    )  # fmt: skip


def test_exchange_that_mixed_nothing__its_bytes_count_and_its_parameters_do_not(status: Status) -> None:
    status.observe(ended("done", 16, 9000, escalation_bytes=90))
    formula = CODECS["modulo4"].bytes_per_parameter * SIZE + 90
    assert (status.exchanged_bytes, status.exchanged_parameters) == (9000, SIZE)
    assert status.formula_bytes == pytest.approx(formula)
    before = dict(status.last_exchange)
    status.observe(ended("lost", 0, 700))
    assert status.exchanged_bytes == 9700 and status.exchanges == {"done": 1, "lost": 1}
    assert (status.exchanged_parameters, status.formula_bytes) == (SIZE, pytest.approx(formula))
    assert status.last_exchange == before and status.distance == 0.02 and status.blocks == 160


def test_exchange_cut_short__counts_the_share_of_parameters_that_it_mixed(status: Status) -> None:
    status.observe(ended("cut", 4, 2500))
    assert (status.exchanged_bytes, status.exchanged_parameters) == (2500, SIZE / 4)


def test_many_notices_of_one_code_leave_room_for_others__and_each_has_its_time(status: Status) -> None:
    status.note(Notice("GD-201", "another secret"))
    for number in range(40):
        status.note(Notice("GD-602", f"checkpoint {number} could not be written"))
    kept = ["GD-201 another secret", *(f"GD-602 checkpoint {n} could not be written" for n in range(34, 40))]
    assert [str(each.notice) for each in status.notices] == kept
