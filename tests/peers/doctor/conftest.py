"""Fixtures of the tests of doctor."""

from tests.runtime.network.conftest import net

__all__ = ["net"]
