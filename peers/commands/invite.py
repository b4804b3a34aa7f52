"""`gossipdp invite`: let other hosts join."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from peers.options import DURATION, decides, json_option

__all__ = ["invite"]

USED: Final[Mapping[str, frozenset[str]]] = {
    "": frozenset({"show"}),
    "--for": frozenset({"name", "show", "expires", "uses", "key"}),
    "--list": frozenset({"listed"}),
    "--revoke": frozenset({"revoke", "reason", "key"}),
}
"""what the command does -> parameters that it uses, beside --json"""


@click.command()
@click.option("--show", is_flag=True, help="Also print the invite itself.")
@click.option("--for", "name", metavar="NAME", help="Write an invite for one host, which holds no secret.")
@click.option(
    "--expires", type=DURATION, default="2h", show_default=True, help="With --for: how long it lets hosts in."
)
@click.option("--uses", type=click.IntRange(1, 256), default=1, show_default=True, help="With --for: hosts it lets in.")
@click.option("--list", "listed", is_flag=True, help="List invites for single hosts, and the hosts that they let in.")
@click.option("--revoke", metavar="NAME", help="Revoke an invite for a single host.")
@json_option
@decides
def invite(
    ctx: click.Context,
    show: bool,
    name: str | None,
    expires: float,
    uses: int,
    listed: bool,
    revoke: str | None,
    as_json: bool,
    reason: str,
    key: Path | None,
) -> None:
    """Write the file that lets another host join, and show its use.

    An invite with --for holds a key of its own and no secret of the network.
    It and --revoke need the operator's key, and a daemon that runs.
    """
    if sum((name is not None, listed, revoke is not None)) > 1:
        raise click.UsageError("give one of --for, --list and --revoke")
    _check_used(ctx, "--list" if listed else "--revoke" if revoke is not None else "--for" if name is not None else "")
    if listed:
        _list(ctx, as_json)
    elif revoke is not None:
        _revoke(ctx, revoke, reason, key, as_json)
    elif name is not None:
        _for_host(ctx, name, expires, uses, key, show, as_json)
    else:
        _for_all(ctx, show, as_json)


def _check_used(ctx: click.Context, does: str) -> None:
    """Raise UsageError if an option is given that would be ignored: an invite allows no more than was asked."""
    for parameter in ctx.command.get_params(ctx):
        key = parameter.name or ""
        users = [each for each, used in USED.items() if key in used]
        if users and does not in users and ctx.get_parameter_source(key) is ParameterSource.COMMANDLINE:
            instead = f"with {does}" if does else f"without {' or '.join(users)}"
            raise click.UsageError(f"{parameter.opts[0]} does nothing {instead}")


def _for_all(ctx: click.Context, show: bool, as_json: bool) -> None:
    """Write the invite that holds the network's secret."""
    from gossipdp.errors import ConfigError, UnreachableError
    from peers import home as homes
    from peers import invites
    from peers.control import ask
    from peers.options import find_home

    home = find_home(ctx)
    try:
        answer = ask(home, "invite")  # the daemon knows its address and its flags
        path, known = Path(answer.get("path") or home / "invite"), [seed for seed in answer.get("seeds", ()) if seed]
    except UnreachableError as unreachable:
        config = homes.read_config(home)
        known = [*homes.advertised(config), *config.network.seeds]
        if known:
            path = invites.write_invite(home, known, config)
        else:
            path = homes.invite_file(home)
            try:  # `up` has written it, and the daemon does not listen yet
                known = [*invites.read_invite(homes.read_text(path)).invite.seeds]
            except ConfigError:
                raise unreachable from None
    _tell(f"{path} admits its holder to the network: handle it like a password.", path, known, show, as_json)


def _for_host(
    ctx: click.Context, name: str, expires: float, uses: int, key: Path | None, show: bool, as_json: bool
) -> None:
    """Write an invite for one host, or a few."""
    import re
    import time

    from gossipdp.errors import ConfigError
    from gossipdp.runtime.network.identity import Identity, NetworkSecret, digest_of
    from gossipdp.runtime.network.invite import MAX_SEEDS, HostInvite
    from peers import decisions, invites
    from peers import home as homes
    from peers.commands.deciding import Counter
    from peers.control import ask

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}", name):
        raise click.UsageError("NAME has 1 to 48 letters, digits, dots, dashes and underscores")
    counter = Counter(ctx, key)
    if any(each["name"] == name and each["verdict"] == "invited" for each in counter.answer["decisions"]):
        raise click.UsageError(f"there is an invite for {name}: --list shows it, --revoke {name} ends it")
    counter.check_newest()
    secret = NetworkSecret.load(counter.home)
    if not secret.generation or secret.generation != counter.desk.generation:
        seen, do = "earlier invites hold the present secret", "run `gossipdp keys rotate` first"
        raise ConfigError("GD-208", "an invite for one host needs a network secret that was rotated", seen=seen, do=do)
    own = Identity.generate()
    end = time.time() + expires
    decision = counter.desk.about_invite(own.id, name, end, uses)
    counter.hand_in(decisions.encode(decision))
    seeds = [seed for seed in ask(counter.home, "invite", name=name)["seeds"] if seed][:MAX_SEEDS]
    config = homes.read_config(counter.home)
    made = HostInvite(
        config.network.name,
        tuple(seeds),
        bytes.fromhex(counter.answer["operator"]),
        secret.curve_server_keys().public,
        digest_of(secret.reveal_generation()),
        own.reveal(),
        decision,
    )
    path = invites.write_host_invite(counter.home, made, config)
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(end))
    hosts = "one host" if uses == 1 else f"{uses} hosts"
    said = f"{path} lets {hosts} in until {until}: handle it like a password."
    _tell(said, path, seeds, show, as_json, name=name, expires=int(end), uses=uses)


def _revoke(ctx: click.Context, name: str, reason: str, key: Path | None, as_json: bool) -> None:
    from peers import invites, tables
    from peers.commands.deciding import Counter, called

    counter = Counter(ctx, key)
    found = [each for each in counter.answer["decisions"] if (each["name"], each["verdict"]) == (name, "invited")]
    if not found:
        raise click.UsageError(f"there is no invite for {name}: see `gossipdp invite --list`")
    names = {row["id"]: row["name"] for row in counter.rows}
    for each in found:
        counter.hand_in(counter.desk.revoked(bytes.fromhex(each["id"]), name, reason, each["expires"], each["uses"]))
        let_in = ", ".join(called(bytes.fromhex(peer), names.get(peer, "")) for peer in each["let_in"])
        then = f" It let in {let_in}, still a member: see `gossipdp members ban`." if let_in else ""
        if not as_json:
            click.echo(f"The invite for {name} is revoked.{then}")
    (counter.home / invites.HOST_INVITES / name).unlink(missing_ok=True)
    if as_json:
        tables.print_json({"name": name, "let_in": [peer for each in found for peer in each["let_in"]]})


def _list(ctx: click.Context, as_json: bool) -> None:
    from peers import tables
    from peers.control import ask
    from peers.options import find_home

    home = find_home(ctx)
    made = [each for each in ask(home, "decisions")["decisions"] if each["verdict"] in ("invited", "revoked")]
    names = {row["id"]: row["name"] for row in ask(home, "members").get("members") or []}
    rows = [tables.invite_told(each, names) for each in made]
    if as_json:
        tables.print_json(made)
    elif rows:
        tables.print_table(tables.INVITE_COLUMNS, rows)
    else:
        click.echo("There is no invite for a single host: `gossipdp invite --for NAME` writes one.")


def _tell(said: str, path: Path, seeds: Sequence[str], show: bool, as_json: bool, **about: Any) -> None:
    """Print where an invite is and its use; with JSON also what is known `about` it."""
    from peers import tables

    if as_json:
        text = {"invite": path.read_text().strip()} if show else {}
        tables.print_json({"path": str(path), "seeds": list(seeds), **about, **text})
        return
    click.echo(said)
    if not seeds:
        click.echo(
            "No other peer can dial this one: set [network] seeds on the new host to a member that can be dialled.",
            err=True,
        )
    click.echo(f"  first dialled:  {', '.join(seeds) or 'none'}")
    click.echo(f"  to use it:      scp {path} HOST:invite")
    click.echo("                  HOST$ gossipdp join @invite -- CMD")
    if show:
        click.echo(path.read_text().strip())
