"""Fixtures of the tests of doctor."""

from tests.runtime.network.conftest import closed_port, net

__all__ = ["closed_port", "net"]
