"""Packets of the link: spans, and bytes that are no message."""

from __future__ import annotations

import ctypes
import math
import subprocess
import sys
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from gossipdp.errors import RemoteProtocolError
from gossipdp.runtime import link as links
from gossipdp.runtime.link.messages import (
    MOST_CHUNKS,
    chunk_bits,
    decode_from_daemon,
    decode_from_training,
    encode,
)


@given(st.sets(st.integers(0, 300)))
def test_spans_cover_exactly_the_chunks(chunks: set[int]) -> None:
    runs = links.Slot(1, 1, chunk_bits(sorted(chunks))).spans
    assert [chunk for first, last in runs for chunk in range(first, last + 1)] == sorted(chunks)
    assert all(after[0] > before[1] + 1 for before, after in pairwise(runs))


def test_slot_of_the_most_chunks_fits_a_packet() -> None:
    slot = links.Slot(1, 1, chunk_bits(range(0, MOST_CHUNKS, 2)))
    packet = encode(slot)
    assert len(packet) < 65536 and decode_from_daemon(packet) == slot


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_packets_are_messages_or_refused(packet: bytes) -> None:
    for decode in (decode_from_training, decode_from_daemon):
        try:
            decode(packet)
        except RemoteProtocolError:
            pass


def test_report_may_leave_every_field_unknown() -> None:
    report = decode_from_training(encode(links.Report(3)))
    assert isinstance(report, links.Report) and math.isnan(report.loss) and report.lost_steps == 0


def test_the_link_imports_neither_torch_nor_zmq() -> None:
    code = "import sys, gossipdp.runtime.link; print(sorted({'torch', 'zmq', 'numba'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    assert ctypes.sizeof(ctypes.c_float) == 4
