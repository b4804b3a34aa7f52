"""`gossipdp finish`: all peers end training, come to one final model, write it and leave."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from peers.options import find_home, home_option

__all__ = ["finish"]

ASK_EVERY = 0.5
"""seconds between two looks at the peer"""
REPEAT = 5.0
"""seconds after which the same line is shown again"""


def _seconds(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    from gossipdp.config import RULES

    rule = RULES["finish.wait"]
    try:
        return float(rule.read(value))
    except ValueError:
        raise click.BadParameter(f"must be {rule.allowed}, such as 5m") from None


@click.command()
@click.option("--base", metavar="DIR", type=click.Path(exists=True, file_okay=False),
              help="Directory of save_pretrained: this host writes its final model in that form.")  # fmt: skip
@click.option("--wait", metavar="TIME", callback=_seconds,
              help="Wait at most this long for members that train on. [default: [finish] wait]")  # fmt: skip
@click.option("--no-wait", is_flag=True, help="Return at once; the peers finish by themselves.")
@home_option
@click.pass_context
def finish(ctx: click.Context, base: str | None, wait: float | None, no_wait: bool) -> int:
    """End training on all peers, and write the final model.

    Every peer hands over its last steps. Then peers exchange until all hold the mean of their replicas. Each writes it
    to HOME/final and leaves. A member with `[finish] follow = false` trains on.

    Exit with 0 once this host's final model is written, with 4 if no peer runs here, and with 8 if the peer ended
    without one, or the peers did not agree on one.
    """
    from peers.control import ask

    home, started = find_home(ctx), time.time()
    ask(home, "finish", calls=True, wait=wait, base=str(Path(base).absolute()) if base else "")
    click.echo("all members are asked to end training")
    if no_wait:
        click.echo(f"the final model will be in {home / 'final'}")
        return 0
    _watch(home)
    return _result(home, started)


def _watch(home: Path) -> None:
    """Show what the peer waits for, until it is gone."""
    from gossipdp.errors import UnreachableError
    from peers.control import ask
    from peers.rest import supervisor

    shown, said = None, 0.0
    while True:
        try:
            end = ask(home, "status", timeout=60.0).get("finish") or {}
        except UnreachableError:
            if not supervisor(home):
                return
            end = {}  # the daemon was killed, or has finished
        news = (end.get("phase"), end.get("awaited"), end.get("writing"))
        if end and (news != shown or time.monotonic() >= said + REPEAT):
            click.echo(end.get("text"))
            shown, said = news, time.monotonic()
        time.sleep(ASK_EVERY)


def _result(home: Path, started: float) -> int:
    from gossipdp.errors import DataError
    from peers.finished import FINAL, NOT_FINAL, read_about

    def fresh(name: str) -> dict[str, Any] | None:
        about = read_about(home, name)
        return about if about and about.get("this_host", {}).get("finished_at", 0.0) >= started - 1.0 else None

    about = fresh(FINAL)
    if about is None and (own := fresh(NOT_FINAL)) is not None:
        share = own["this_host"].get("relative_distance")
        seen = f"distance at the last exchange: {'unknown' if share is None else f'{share:.2g} of the usual one'}"
        seen = "other members have trained on without this peer" if own["this_host"].get("early") else seen
        do = f"see HOME/log; this host's own model is in {home / NOT_FINAL}, and `gossipdp up` trains on"
        raise DataError("GD-404", "the peers did not agree on one final model", seen=seen, do=do)
    if about is None:
        seen, do = f"nothing new in {home / FINAL}", "see HOME/log, and `gossipdp checkpoint list` for its checkpoints"
        raise DataError("GD-602", "the peer ended without a final model", seen=seen, do=do)
    click.echo(f"final model in {home / FINAL}: {_described(about)}")
    return 0


def _described(about: dict[str, Any]) -> str:
    names, here = [peer.get("name", "?") for peer in about.get("peers", ())], about.get("this_host", {})
    if len(names) < 2 and (others := [each["name"] for each in here.get("handed_in", ())]):
        return f"this peer's, with the last steps of {', '.join(others[:4])}{', ...' if len(others) > 4 else ''}"
    if len(names) < 2:
        return "this peer's own, no other member took part"
    held = f"held by {len(names)} peers ({', '.join(names[:4])}{', ...' if len(names) > 4 else ''})"
    share = here.get("relative_distance")
    if share is None:
        return f"{held}, all equal"
    return f"{held}, which agree to 1e-3 of their usual distance; last measured here: {share:.2g}"
