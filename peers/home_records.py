"""What the daemon keeps in its home for the next start: run, members, decisions and secret."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gossipdp.config import Config
from gossipdp.errors import DataError
from gossipdp.protocol.wire.messages import Decision, Member, Receipt, State
from gossipdp.runtime import decisions_file, files
from gossipdp.runtime.network.identity import NetworkSecret
from peers import home as homes
from peers import invites

__all__ = ["MEMBERS", "HomeRecords", "remembered"]

MEMBERS: Final = "members.json"


class HomeRecords:
    """The `Records` of a node: see there.

    Args:
        config: of the home, for its invite.
    """

    def __init__(self, home: Path, config: Config) -> None:
        self._home, self._config = home, config

    def found_run(self) -> bytes:
        run = secrets.token_bytes(16)
        self.learn_run(run)
        return run

    def learn_run(self, run: bytes) -> None:
        files.save_run(self._home / homes.RUN, run)

    def remember(self, members: Sequence[tuple[Member, float]]) -> None:
        """Save the members that can be dialled."""
        kept = [
            files.Remembered(id=m.id.hex(), name=m.name, address=m.address, others=m.addresses[1:], known=known)
            for m, known in members
            if m.address
        ]
        files.save_members(self._home / MEMBERS, kept)

    def keep_decisions(self, decisions: Sequence[Decision], receipts: Sequence[Receipt]) -> None:
        decisions_file.save_decisions(self._home, decisions, receipts)

    def keep_secret(self, secret: NetworkSecret) -> None:
        """Save the secret, and put it into this host's invite."""
        secret.replace(self._home)
        invites.refresh_invite(self._home, self._config)


def remembered(home: Path) -> tuple[list[tuple[Member, float]], str]:
    """The saved members, and a notice if their file was damaged. Seeds do in place of a damaged file."""
    path = home / MEMBERS
    try:
        kept = files.load_members(path)
    except DataError as error:
        return [], files.set_aside(path, error)
    # Of the record only the address counts. Incarnation 0 yields to whatever the member says about itself.
    return [
        (Member(bytes.fromhex(each.id), each.name, each.address, 0, 0, State.FAILED, others=each.others), each.known)
        for each in kept
    ], ""
