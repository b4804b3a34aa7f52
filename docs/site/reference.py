"""Reference pages made from the code: each function returns the Markdown that `docs/conf.py` puts into a page."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import yaml

from gossipdp.config import SECTIONS
from gossipdp.config_help import Key, known_keys, section_help
from gossipdp.error_codes import CODES, EXITS, Code
from gossipdp.runtime.observability.metric_table import FAMILIES, HEALTHY, Family
from peers.cli import cli as gossipdp
from peers.config_text import in_presets
from peers.home import presets

LINK = r"[GD-\1](errors.md#gd-\1)"
DEPLOY = Path(__file__).parents[2] / "peers" / "deploy"
LABEL = re.compile(r"\{\{ \$labels\.(\w+) \}\}")
"""a label in the text of an alert: Prometheus puts its value there, and the table its name"""
WIDTH = 100
"""columns of a command's usage"""


def capital(text: str) -> str:
    """With a capital letter, unless it begins with a word of code."""
    return text[:1].upper() + text[1:]


# -- errors ----------------------------------------------------------------------------------------------------------

FAMILIES_OF_CODES = {
    "1": "1xx: reaching peers and the daemon",
    "2": "2xx: keys and admission",
    "3": "3xx: configuration, models and scripts",
    "4": "4xx: exchanges",
    "5": "5xx: this host",
    "6": "6xx: checkpoints and state",
}


def errors() -> str:
    """Every error code, under an anchor of its own, such as ``gd-101``."""
    lines: list[str] = []
    for digit, title in FAMILIES_OF_CODES.items():
        lines += [f"## {title}", ""]
        for code, entry in CODES.items():
            if code.startswith(f"GD-{digit}"):
                lines += [*error(code, entry), ""]
    return "\n".join(lines)


def error(code: str, entry: Code) -> Iterator[str]:
    yield from (f"({code.lower()})=", f"### {code} {entry.title}", "", escaped(entry.meaning), "")
    yield f"**What to do:** {escaped(entry.do)}."
    if entry.exits:
        yield from ("", f"Exit code: {', '.join(map(str, entry.exits))}.")


def exits() -> str:
    """The exit codes as a table."""
    rows = [f"| {number} | {meaning} |" for number, meaning in EXITS.items()]
    return "\n".join(["| code | meaning |", "|---|---|", *rows])


# -- configuration ---------------------------------------------------------------------------------------------------


def config() -> str:
    """Every key of the configuration, by section."""
    lines = []
    for section in ("", *SECTIONS):
        keys = [key for key in known_keys() if key.name.rpartition(".")[0] == section]
        lines += [f"## [{section}]", "", escaped(section_help(section)), ""] if section else ["## Preset", ""]
        for key in keys:
            lines += [*setting(key), ""]
    return "\n".join(lines)


def setting(key: Key) -> Iterator[str]:
    default = "; ".join([f"`{key.default}`", *in_presets(key.name, presets())])
    yield from (f"({key.name.replace('.', '-')})=", f"### {key.name}", "", escaped(key.meaning), "")
    yield f"* **When to change it.** {escaped(key.when)}"
    yield f"* **Allowed.** {capital(escaped(key.range))}" + (f"; in {key.unit}." if key.unit else ".")
    yield f"* **Default.** {default}."
    yield f"* **Peers.** {'All peers need the same value.' if key.shared else 'Values may differ.'}"
    yield f"* **Variable.** `{key.variable}`"


# -- commands --------------------------------------------------------------------------------------------------------


def cli() -> str:
    """Every command with its help and its options, in the order of the command line's own list."""
    return "\n".join(["## gossipdp", "", *described(gossipdp, "gossipdp"), *commands(gossipdp, "gossipdp", 2)])


def commands(group: click.Group, path: str, depth: int) -> Iterator[str]:
    for name, command in sorted(group.commands.items()):
        if not command.hidden:
            yield from (f"{'#' * depth} {path} {name}", "", *described(command, f"{path} {name}"))
            if isinstance(command, click.Group):
                yield from commands(command, f"{path} {name}", depth + 1)


def described(command: click.Command, path: str) -> Iterator[str]:
    """A command's help, usage and options."""
    context = click.Context(command, info_name=path, max_content_width=WIDTH, terminal_width=WIDTH)
    yield from (*paragraphs(command.help or ""), "```text", usage(command, context), "```", "")
    options = [each.get_help_record(context) for each in command.get_params(context)]
    records = [record for record in options if record and record[1] and not record[0].endswith("--help")]
    rows = [f"| `{code(name)}` | {cell(text)} |" for name, text in records]
    if rows:
        yield from ("| option | meaning |", "|---|---|", *rows, "")
    formatter = context.make_formatter()
    command.format_epilog(context, formatter)
    if epilog := inspect.cleandoc(formatter.getvalue()):
        yield from ("```text", epilog, "```", "")


def usage(command: click.Command, context: click.Context) -> str:
    return " ".join([context.command_path, *command.collect_usage_pieces(context)])


def paragraphs(help: str) -> Iterator[str]:
    r"""The help text as Markdown: click shows a paragraph after ``\b`` as it stands."""
    for paragraph in inspect.cleandoc(help).partition("\f")[0].split("\n\n"):
        if paragraph.startswith("\b"):
            yield from ("```text", paragraph.removeprefix("\b").strip("\n"), "```", "")
        else:
            yield from (escaped(paragraph), "")


def escaped(text: str) -> str:
    """Plain text as Markdown. Words in backticks stay code, and error codes become links."""
    parts = re.split(r"(`[^`]*`)", text)
    plain = (part if part.startswith("`") else re.sub(r"([\\*_\[\]<>])", r"\\\1", part) for part in parts)
    return "".join(part if part.startswith("`") else re.sub(r"\bGD-(\d{3})\b", LINK, part) for part in plain)


def cell(text: str) -> str:
    return escaped(text).replace("|", "\\|")


def code(text: str) -> str:
    return text.replace("|", "\\|")


# -- metrics ---------------------------------------------------------------------------------------------------------


def metrics() -> str:
    """Every metric, in the order of the page at ``/metrics``."""
    rows = [f"| `gossipdp_{family.name}` | {about(family)} |" for family in FAMILIES]
    return "\n".join(["| metric | meaning |", "|---|---|", *rows])


def about(family: Family) -> str:
    kind = " by ".join([family.kind, *([", ".join(f"`{label}`" for label in family.labels)] if family.labels else [])])
    healthy = HEALTHY.get(family.name)
    return f"{cell(family.help)} *{capital(kind)}.*" + (f" Healthy: {cell(healthy)}." if healthy else "")


# -- alerts ----------------------------------------------------------------------------------------------------------


def alerts() -> str:
    """Every alert of the rules that are shipped, in their order, with what to do."""
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text("utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    rows = [f"| `{rule['alert']}` | {when(rule)} | {cell(rule['annotations']['runbook'])} |" for rule in rules]
    return "\n".join(["| alert | severity, and what it says | what to do |", "|---|---|---|", *rows])


def when(rule: dict[str, Any]) -> str:
    after = f", after {rule['for']}" if "for" in rule else ""
    summary = LABEL.sub(lambda match: match[1].upper(), rule["annotations"]["summary"])
    return f"*{rule['labels']['severity']}{after}.* {cell(summary)}"


# -- a script --------------------------------------------------------------------------------------------------------


def script() -> str:
    """The whole training script of the recipes."""
    path = Path(__file__).parents[2] / "peers" / "jobs" / "recipes" / "train.py"
    return f"```python\n{path.read_text('utf-8')}```"
