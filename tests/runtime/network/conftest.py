"""Fixtures of the transport tests."""

import socket
from collections.abc import Iterator

import pytest

from tests.runtime.network.transports import Net


@pytest.fixture
def net() -> Iterator[Net]:
    net = Net()
    yield net
    for transport in net.transports:
        transport.close(linger=0)


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]
