"""How a command of the operator hands decisions to the daemon of a home."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from gossipdp.errors import ConfigError, MismatchError
from gossipdp.runtime.network.signed_hello import RENEWABLE
from peers import control
from peers.decisions import Desk, operator_key, subject_of
from peers.options import find_home

__all__ = ["Counter", "called"]


class Counter:
    """Where an operator hands decisions to the daemon of a home."""

    def __init__(self, ctx: click.Context, key: Path | None) -> None:
        self.home = find_home(ctx)
        self.rows: list[dict[str, Any]] = control.ask(self.home, "members").get("members") or []
        self.answer = control.ask(self.home, "decisions")
        self.desk = Desk(operator_key(self.home, key), self.answer)

    def meant(self, who: Sequence[str]) -> dict[bytes, str]:
        """The peers that the words mean, with their names."""
        return dict(subject_of(words, self.rows) for words in who)

    def present(self) -> dict[bytes, str]:
        """Live members that this host has heard and that are not banned, and peers that were allowed before."""
        live = [row for row in self._live() if row["me"] or row["known"] is not None]
        names = {bytes.fromhex(row["id"]): row["name"] for row in self.rows}
        peers = {bytes.fromhex(row["id"]) for row in live} - self.desk.banned | self.desk.allowed
        return {peer: names.get(peer, "") for peer in sorted(peers)}

    def unheard(self, named: Mapping[bytes, str]) -> dict[bytes, str]:
        """Live members not among those named: this host knows them from others alone, and they may not exist."""
        live = {bytes.fromhex(row["id"]): row["name"] for row in self._live()}
        return {peer: name for peer, name in live.items() if peer not in named and peer not in self.desk.banned}

    def _live(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["state"] in ("alive", "suspect")]

    def down(self, named: Mapping[bytes, str]) -> list[dict[str, Any]]:
        """Members that failed or left, and are not among those named."""
        away = [row for row in self.rows if row["state"] in ("failed", "left")]
        gone = [row for row in away if bytes.fromhex(row["id"]) not in named]
        return [row for row in gone if bytes.fromhex(row["id"]) not in self.desk.banned]

    def check_newest(self) -> None:
        """Check that this host has the network's newest secret. Raises ConfigError GD-208."""
        newest = max((each["number"] for each in self.answer["decisions"] if each["verdict"] == "renewed"), default=0)
        if newest > self.desk.generation:
            seen, do = "the network has a newer one", "do it on a host that has it, with --key FILE"
            raise ConfigError("GD-208", "this host lacks the network's newest secret", seen=seen, do=do)

    def check_renewable(self) -> None:
        """Check that the network can have a new secret now.

        Raises:
            ConfigError: GD-208, this host lacks the newest one.
            MismatchError: GD-302, live members are of a version that cannot learn of it.
        """
        self.check_newest()
        old = sorted(row["name"] for row in self._live() if row["protocol"] < RENEWABLE)
        if old:
            seen, do = f"protocol 3: {', '.join(old)}", "upgrade them first"
            raise MismatchError("GD-302", "members of an earlier version cannot get a new secret", seen=seen, do=do)

    def hand_in(self, decision: str) -> None:
        """Let the daemon take a signed decision. Raises ConfigError GD-207."""
        answer = control.ask(self.home, "decide", decision=decision)
        if not answer["stands"]:
            seen = "a later decision stands, or 4,096 peers have been banned or unbanned"
            do = "see `gossipdp members decisions`, and try again; or close the network"
            raise ConfigError("GD-207", "the daemon did not take the decision", seen=seen, do=do)
        if not answer["saved"]:
            click.echo(
                "The decision is in force, but this host could not save it yet: see `gossipdp status`.", err=True
            )


def called(peer: bytes, name: str) -> str:
    return f"{name} ({peer.hex()[:8]})" if name else peer.hex()[:8]
