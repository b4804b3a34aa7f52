"""libzmq's I/O threads: as many as the host has cores for, and connections on each of them."""

from __future__ import annotations

import pytest
import zmq

from gossipdp.runtime.network import sockets
from gossipdp.runtime.network.identity import Identity, NetworkSecret
from gossipdp.runtime.network.limits import LIMITS


@pytest.mark.parametrize(("cores", "threads"), [(2.0, 1), (8.0, 2), (64.0, 4)])
def test_io_threads_by_usable_cores(monkeypatch: pytest.MonkeyPatch, cores: float, threads: int) -> None:
    monkeypatch.setattr(sockets, "usable_cores", lambda: cores)
    server, client = NetworkSecret(bytes(32)).curve_server_keys(), Identity.generate().curve
    made = sockets.Sockets(LIMITS["local"], server, client)
    assert made.context.get(zmq.IO_THREADS) == threads
    made.context.destroy(linger=0)
