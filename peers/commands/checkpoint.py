"""`gossipdp checkpoint`: list, verify, export and save checkpoints. Only `save` needs a daemon."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peers.options import find_home, flags_of, home_option, json_option, set_option

if TYPE_CHECKING:
    from gossipdp.errors import DataError
    from gossipdp.runtime.storage.checkpoint import Checkpoint
    from gossipdp.runtime.storage.store import Store

__all__ = ["checkpoint"]

EXPORTED = "model.safetensors"
"""Name of the exported file in a directory."""
SAVED_WITHIN = 3600.0
"""Seconds that a checkpoint may take. On a stuck disk the daemon gives up earlier."""


@click.group()
def checkpoint() -> None:
    """List, verify, export and save checkpoints."""


@checkpoint.command("list")
@json_option
@set_option
@home_option
@click.pass_context
def checkpoint_list(ctx: click.Context, as_json: bool) -> None:
    """List all checkpoints, oldest first, from their manifests.

    `verify` reads their contents. The list shows which are pinned, and why. A pinned checkpoint stays until you delete
    it or the file `pinned` in it, or until four later ones are pinned.
    """
    from gossipdp.errors import DataError
    from gossipdp.protocol.wire.messages import printable
    from peers import home as homes
    from peers import tables

    store, rows = _store(ctx), []
    for path, found in store.manifests():
        row: dict[str, Any] = {"path": str(path), "name": path.name, "pinned": store.why_pinned(path)}
        if isinstance(found, DataError):
            rows.append({**row, "state": "damaged", "seen": found.seen})
            continue
        meta = found.meta
        size = sum(record.bytes for record in found.files.values())
        rows.append(
            {
                **row, "state": "complete", "age": max(time.time() - found.saved_at, 0.0), "saved_at": found.saved_at,
                "round": meta.peer_rounds, "model_rounds": meta.round, "clock": meta.clock,
                "steps": meta.steps, "samples": meta.samples, "bytes": size,
            }
        )  # fmt: skip
    if not rows and homes.network_of(find_home(ctx)) is None:
        raise _nothing_to("list", store)
    if as_json:
        tables.print_json(rows)
        return
    columns = [
        tables.Column("checkpoint", "name"),
        tables.Column("state", "state"),
        tables.Column("age", "age", tables.duration, 0, True),
        tables.Column("round", "round", str, 0, True),
        tables.Column("clock", "clock", str, 1, True),
        tables.Column("size", "bytes", lambda value: tables.quantity(value, "B"), 1, True),
        tables.Column("pinned", "pinned", lambda _: "yes"),
    ]
    tables.print_table(columns, rows)
    for row in rows:
        if row["pinned"] is not None:
            click.echo(f"{row['name']} is pinned: {printable(row['pinned']) or 'its reason is lost'}")
    _tell_fallen([row for row in rows if "clock" in row])


def _tell_fallen(rows: Sequence[dict[str, Any]]) -> None:
    """Say which checkpoint is the newest, and why, if an earlier one has a higher clock."""
    furthest = max(rows, key=lambda row: row["clock"], default=None)
    if furthest is not None and furthest["clock"] > rows[-1]["clock"]:
        click.echo(
            f"{rows[-1]['name']} is the newest. {furthest['name']} has a higher clock: after it this peer took an"
            " older model from a member, or finished while others trained on."
        )


@checkpoint.command("save")
@home_option
@click.pass_context
def checkpoint_save(ctx: click.Context) -> None:
    """Make the running peer write a checkpoint, and wait for it.

    Exit with 8 if the peer cannot write it, has no model yet, or is already writing one.
    """
    from gossipdp.errors import DataError
    from peers.control import ask
    from peers.waits import told

    with told("the daemon to write the checkpoint", _say):
        saved = ask(find_home(ctx), "checkpoint", timeout=SAVED_WITHIN).get("saved")
    if not saved:
        seen = "the peer has no whole model yet, or is still writing the previous checkpoint"
        raise DataError(
            "GD-602", "the peer cannot begin a checkpoint now", seen=seen, do="see `gossipdp status`, and try again"
        )
    click.echo(f"saved {saved}")


@checkpoint.command("verify")
@click.argument("path", required=False, metavar="[CHECKPOINT]")
@json_option
@set_option
@home_option
@click.pass_context
def checkpoint_verify(ctx: click.Context, path: str | None, as_json: bool) -> int:
    """Read every byte of one checkpoint, or of all. Exit with 8 on damage, or if there is none."""
    from gossipdp.errors import DataError
    from peers import tables

    store, code = _store(ctx), 0
    rows: list[dict[str, Any]] = []
    named = None if path is None else _checkpoint_path(store, path)
    for each, found in store.each(say=_say) if named is None else [(named, store.verify(named, say=_say))]:
        row = {"path": str(each), "name": each.name}
        if isinstance(found, DataError):
            click.echo(str(found), err=True)
            code = found.exit_code
            rows.append({**row, "state": "damaged", "code": found.code, "seen": found.seen})
        else:
            rows.append({**row, "state": "ok", "round": found.meta.peer_rounds})
            if not as_json:
                click.echo(f"ok: {each}, round {found.meta.peer_rounds}")
    if not rows:
        raise _nothing_to("verify", store)
    if as_json:
        tables.print_json(rows)
    return code


@checkpoint.command("export")
@click.argument("words", metavar="[HOME...] OUT", nargs=-1, required=True)
@click.option("--average", is_flag=True, help="Average the newest checkpoints of HOME...; give two or more.")
@click.option(
    "--checkpoint", "path", metavar="CHECKPOINT", help="Name or path of the checkpoint.  [default: the newest]"
)
@click.option(
    "--base",
    metavar="DIR",
    help="Directory of save_pretrained for this model. It supplies everything that is not trained.",
)
@click.option("--strip-prefix", "prefixes", metavar="P", multiple=True,
              help="Remove the prefix P, such as `module.`, from tensor names; repeatable. One that precedes the "
              "names of the base is removed anyway.")  # fmt: skip
@click.option("--shard", metavar="GB", type=click.FloatRange(min=0, min_open=True), default=5.0, show_default=True,
              help="In a directory: at most this many 10^9 bytes of weights per file.")  # fmt: skip
@set_option
@home_option
@click.pass_context
def checkpoint_export(
    ctx: click.Context,
    words: tuple[str, ...],
    average: bool,
    path: str | None,
    base: str | None,
    prefixes: tuple[str, ...],
    shard: float,
) -> None:
    """Write the model as named tensors.

    With --average it is the mean of several homes' models, which must have the same tensors: exit with 6 if not.

    With --base, OUT is a new and complete directory: from_pretrained and model servers load it. Without --base, OUT is
    one safetensors file of the tensors that peers exchange, without frozen parameters and config.json. If OUT is a
    directory or ends with a slash, the file is OUT/model.safetensors, or several with an index if it passes --shard.
    """
    from peers import export

    *homes, out = words
    if average and (len(homes) < 2 or path is not None):
        raise click.UsageError("--average needs two or more homes before OUT, and takes no --checkpoint")
    if homes and not average:
        raise click.UsageError(f"give one OUT, not {len(words)}; to average homes, give --average")
    if average:
        chosen, of = _average(ctx, homes), f"the mean of {len(homes)} homes"
    else:
        store = _store(ctx)
        chosen = store.verify(_checkpoint_path(store, path), say=_say) if path is not None else _newest(store)
        of = f"round {chosen.meta.peer_rounds}"
    where = Path(out).absolute()
    if base is None:
        tensors, files = export.trained(chosen, prefixes), 1
        if out.endswith("/") or where.is_dir():
            files = export.export_files(tensors, where, shard=int(shard * 1e9), say=_say)
            out = str(Path(out) / EXPORTED) if files == 1 else str(Path(out))
        else:
            export.export_file(tensors, where, say=_say)
        click.echo(f"wrote {out}: {len(tensors)} tensors of {of}" + (f"; files of weights: {files}" * (files > 1)))
        return
    made = export.export_model(chosen, where, Path(base), prefixes=prefixes, shard=int(shard * 1e9), say=_say)
    click.echo(f"wrote {out}: {made.trained} tensors of {of}, {made.kept} of {base}; files of weights: {made.files}")
    for name in made.dropped:
        click.echo(f"left out {name}: it is tied, and from_pretrained ties it again")


def _say(line: str) -> None:
    """Tell a person; standard output is for results."""
    click.echo(line, err=True)


def _average(ctx: click.Context, homes: Sequence[str]) -> Checkpoint:
    """The mean of the newest checkpoints of `homes`. Says of which round each is."""
    from peers.average import Averaged

    parts = [_newest(_store(ctx, Path(home).absolute())) for home in homes]
    for home, part in zip(homes, parts, strict=True):
        click.echo(f"{home}: round {part.meta.peer_rounds}, clock {part.meta.clock}")
    return Averaged(parts)


def _newest(store: Store) -> Checkpoint:
    """The newest checkpoint that is whole. Says which newer ones are damaged."""
    newest, notices = store.latest(say=_say)
    for notice in notices:
        click.echo(str(notice), err=True)
    if newest is None:
        raise _nothing_to("export", store)
    return newest


def _store(ctx: click.Context, home: Path | None = None) -> Store:
    from gossipdp.runtime.storage.store import Store
    from peers import home as homes

    home = find_home(ctx) if home is None else home
    return Store(home / homes.read_config(home, flags_of(ctx)).checkpoint.dir)


def _nothing_to(verb: str, store: Store) -> DataError:
    from gossipdp.errors import DataError

    where = str(store.dir) if store.dir.exists() else f"{store.dir} does not exist"
    do = "name the home (--home) and the flags of its peer (--set), or wait for its first checkpoint"
    return DataError("GD-604", f"there is no checkpoint to {verb}", seen=where, do=do)


def _checkpoint_path(store: Store, text: str) -> Path:
    """Raises DataError GD-604 if no checkpoint has that name or path."""
    from gossipdp.errors import DataError

    path = store.dir / text if "/" not in text else Path(text)
    if not path.is_dir():
        do = "`gossipdp checkpoint list` names those of this home"
        raise DataError("GD-604", f"there is no checkpoint {text}", seen=f"no folder {path}", do=do)
    return path
