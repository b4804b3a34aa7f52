"""Where a command takes its invite from. Only click is imported here, so that `--help` stays quick."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import click

__all__ = ["invite_text"]


def invite_text(argument: str | None) -> str:
    """The text of the invite that a command's argument names: @FILE, - for standard input, or None for GOSSIPDP_INVITE.

    Raises:
        click.UsageError: there is none, or the argument is the invite itself, which other users could read.
        ConfigError: GD-206.
    """
    from gossipdp.errors import ConfigError
    from gossipdp.runtime.home_paths import expanded

    limit = 16 << 10
    if argument is None:
        if text := os.environ.get("GOSSIPDP_INVITE"):
            return text
        near = " (did you mean @invite?)" if _is_file("invite") else ""
        raise click.UsageError(f"no invite: give @FILE or -, or set GOSSIPDP_INVITE{near}")
    if argument == "-":
        if sys.stdin.isatty():
            click.echo("Paste the invite here, then press Enter and Ctrl-D.", err=True)
        return sys.stdin.read(limit)
    if not argument.startswith("@"):
        if _is_file(argument):
            raise click.UsageError(f"did you mean @{argument}? The @ reads the invite from that file")
        raise click.UsageError(
            "give the invite as @FILE, as - to read it from standard input, or in GOSSIPDP_INVITE;\n"
            "an invite holds a secret, and every user of this host can read a command's arguments"
        )
    try:
        with open(expanded(argument[1:]), encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode) and status.st_mode & 0o077:
                do = (
                    f"chmod 600 {argument[1:]}, or `gossipdp join - < {argument[1:]}` on a read-only mount; "
                    "if another user has read it, `gossipdp keys rotate` on a member"
                )
                seen = f"{argument[1:]} has mode {stat.S_IMODE(status.st_mode):03o}"
                raise ConfigError("GD-206", "other users can read the invite, which is a secret", seen=seen, do=do)
            return file.read(limit)
    except (OSError, UnicodeDecodeError) as error:
        do = "name the file that `gossipdp invite` wrote as @FILE, and let this user read it"
        raise ConfigError("GD-206", "the invite cannot be read", seen=str(error), do=do) from None


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # too long for a name, as an invite may be
        return False
