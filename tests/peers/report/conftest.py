"""Fixtures of the tests of the report."""

from tests.peers.commands.conftest import elsewhere, founder, gossipdp, started

__all__ = ["elsewhere", "founder", "gossipdp", "started"]
