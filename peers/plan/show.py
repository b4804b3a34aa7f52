"""Prints a plan: a table, the advice and the lines of the run file, or all of it as JSON."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping
from typing import Any

import click

from gossipdp.config import RULES, value_of
from peers import tables
from peers.plan.advice import Advice
from peers.plan.choice import Plan, Row, usual_config
from peers.plan.network import FIGURES, percent
from peers.plan.running import Found

__all__ = ["as_json", "settings_lines", "show"]


def show(plan: Plan, advice: Advice, price: float | None, taken: Mapping[str, Found]) -> None:
    """Print it.

    Args:
        price: of a GB sent, or None.
        taken: figures of the running network that the plan uses.
    """
    for name, found in taken.items():
        told = "unknown" if found.value is None else FIGURES[name].show(found.value)
        _say(f"{name.replace('_', ' ')} {told}: {found.how}", "  ")
    if taken:
        click.echo()
    _say(_network(plan))
    click.echo()
    tables.print_table(_columns(plan, price), [_cells(row, price) for row in plan.rows.values()])
    click.echo()
    _say(advice.headline)
    for reason in (*advice.reasons, *advice.notes):
        _say(f"* {reason.text} [{reason.page}]", "  ")
    click.echo("\nSettings of gossip in the run file:\n" if advice.use != "ddp" else "\nIf you use gossip anyway:\n")
    for line in settings_lines(plan):
        click.echo(line)


def settings_lines(plan: Plan) -> list[str]:
    """TOML that a run file takes."""
    usual, lines, open_section = usual_config(), list[str](), ""
    for key, value in plan.settings.items():
        section, _, name = key.partition(".")
        if section != open_section:
            lines.append(f"[{section}]")
            open_section = section
        default = value_of(usual, key)
        origin = "the default" if default == value else f"in place of {RULES[key].show(default)}"
        lines.append(f"{f'{name} = {RULES[key].show(value)}':<16} # {origin}")
    return lines


def as_json(plan: Plan, advice: Advice, price: float | None, taken: Mapping[str, Found]) -> dict[str, Any]:
    """The same, for programs. Seconds, bytes and shares."""
    network = plan.network
    return {
        "network": {
            "parameters": network.parameters, "hosts": network.hosts, "step_time": network.step_time,
            "speeds": list(network.speeds), "bandwidth": network.bandwidth, "latency": network.latency,
        },
        "accepted": plan.accepted,
        "taken": {name: {"value": found.value, "how": found.how} for name, found in taken.items()},
        "ways": [{**_cells(row, price), "steps": list(row.round.steps)} for row in plan.rows.values()],
        "fill": plan.fill,
        "settings": dict(plan.settings),
        "advice": {
            "use": advice.use,
            "text": advice.headline,
            "reasons": [{"text": each.text, "page": each.page} for each in (*advice.reasons, *advice.notes)],
        },
    }  # fmt: skip


def _network(plan: Plan) -> str:
    network = plan.network
    speeds = "of equal speed" if network.equal else "of speeds " + FIGURES["speeds"].show(network.speeds)
    slowest = "" if network.equal else " on the slowest"
    return (
        f"{network.hosts} hosts {speeds}; {FIGURES['parameters'].show(network.parameters)} parameters,"
        f" {FIGURES['step_time'].show(network.step_time)} a step{slowest};"
        f" {FIGURES['bandwidth'].show(network.bandwidth)},"
        f" {FIGURES['latency'].show(network.latency)} one way."
    )


def _columns(plan: Plan, price: float | None) -> list[tables.Column]:
    columns = [
        tables.Column("way", "way"),
        tables.Column("every", "every", right=True),
        tables.Column("round", "round", _seconds, right=True),
        tables.Column("lost", "lost", percent, right=True),
        tables.Column("links", "link", percent, 1, right=True),
        tables.Column("sent/h", "sent_per_hour", _bytes, right=True),
        tables.Column("price/h", "price_per_hour", "{:.2f}".format, right=True),
        tables.Column("memory", "memory", _bytes, right=True),
    ]
    hidden = {"link"} if plan.network.equal else set()
    return [each for each in columns if each.key not in (hidden if price is not None else hidden | {"price_per_hour"})]


def _cells(row: Row, price: float | None) -> dict[str, Any]:
    return {
        "way": row.way.title,
        "every": row.every,
        "round": row.round.seconds,
        "lost": row.lost,
        "link": row.link,
        "sent_per_hour": row.bytes,
        "price_per_hour": None if price is None else price * row.bytes / 1e9,
        "memory": row.memory,
    }


def _say(text: str, indent: str = "") -> None:
    width = min(tables.TERMINAL_WIDTH, shutil.get_terminal_size((tables.TERMINAL_WIDTH, 24)).columns)
    click.echo(textwrap.fill(text, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False))


def _seconds(value: float) -> str:
    return f"{value:.3g}s" if value < 100.0 else tables.duration(value)


def _bytes(value: float) -> str:
    return tables.quantity(value, "B")
