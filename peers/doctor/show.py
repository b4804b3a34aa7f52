"""Findings on a terminal, and as JSON."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Sequence
from typing import Any, Final

import click

from gossipdp.protocol.wire.messages import printable
from peers.doctor.findings import Finding, Light, worst

__all__ = ["as_json", "exit_code", "show"]

WORDS: Final = {Light.GREEN: "ok", Light.YELLOW: "doubtful", Light.RED: "WRONG", Light.GREY: "-"}
COLOURS: Final = {Light.GREEN: "green", Light.YELLOW: "yellow", Light.RED: "red", Light.GREY: "bright_black"}
INDENT: Final = 10
MOST: Final = 100
"""characters of a line, at most"""


def show(findings: Sequence[Finding], seconds: float) -> None:
    """Print the findings, and a last line that counts them."""
    width = min(MOST, shutil.get_terminal_size((80, 24)).columns)
    for finding in findings:
        _print(finding, width)
    counted = [(sum(each.light is light for each in findings), light.value) for light in (Light.RED, Light.YELLOW)]
    told = ", ".join(f"{number} {word}" for number, word in counted if number) or "nothing wrong"
    click.echo(f"\n{told}; {len(findings)} findings in {seconds:.0f} s")


def _print(finding: Finding, width: int) -> None:
    text = printable(f"{finding.about}: {finding.said}")
    first, *rest = textwrap.wrap(text, width - INDENT, break_on_hyphens=False)
    word = click.style(f"{WORDS[finding.light]:<{INDENT}}", fg=COLOURS[finding.light], bold=finding.light is Light.RED)
    coloured = None if not os.environ.get("NO_COLOR") else False
    click.echo(word + first, color=coloured)
    for line in (*rest, *_advice(finding, width)):
        click.echo(" " * INDENT + line)


def _advice(finding: Finding, width: int) -> list[str]:
    if not finding.do:
        return []
    return textwrap.wrap(
        printable(f"do: {finding.do}"), width - INDENT, subsequent_indent="    ", break_on_hyphens=False
    )


def as_json(findings: Sequence[Finding], seconds: float) -> dict[str, Any]:
    return {
        "worst": worst(findings).name.lower(),
        "seconds": round(seconds, 2),
        "findings": [finding.told() for finding in findings],
    }


def exit_code(findings: Sequence[Finding]) -> int:
    """0 if nothing is wrong, else 1. What is doubtful does not count."""
    return int(worst(findings) is Light.RED)
