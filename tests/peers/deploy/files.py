"""The files of peers/deploy as the tools that they are for read them. Not a test."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import yaml

from gossipdp.config import Config
from gossipdp.config_loading import load
from peers.cli import cli
from peers.home import presets
from peers.options import command_of, flags_of

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "peers" / "deploy"
UNIT = DEPLOY / "systemd" / "gossipdp@.service"
JOIN = DEPLOY / "systemd" / "join.conf"
SBATCH = DEPLOY / "slurm" / "train.sbatch"
START = DEPLOY / "kubernetes" / "start.sh"
COMPOSE = DEPLOY / "docker" / "compose.yaml"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
PATIENCE = 120
"""seconds from SIGTERM to SIGKILL that README and docs/operate.md ask for"""


class Line(NamedTuple):
    """A line of `gossipdp` as its own parser reads it."""

    command: str
    config: Config
    training: list[str]


def parsed(words: Sequence[str], environment: Mapping[str, str] | None = None) -> Line:
    """Read the words after `gossipdp`. Raises click.UsageError and ConfigError, as the command does."""
    with click.Context(cli, info_name="gossipdp") as group:
        _, rest, _ = cli.make_parser(group).parse_args(list(words))
        name, command, rest = cli.resolve_command(group, rest)
        assert name is not None and command is not None
        with command.make_context(name, rest, parent=group) as line:
            own = {key: value for key, value in (environment or {}).items() if key.startswith("GOSSIPDP_")}
            flags = flags_of(line) | ({"network.name": name} if (name := line.params.get("network")) else {})
            config = load("", file="", environment=own, flags=flags, presets=presets())
            return Line(str(line.info_name), config, command_of(line))


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def document(path: Path) -> Any:
    (only,) = documents(path)
    return only


def unit(*paths: Path) -> dict[str, list[str]]:
    """Keys of a unit and its drop-ins: an empty value forgets those before it."""
    found: dict[str, list[str]] = {}
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            if match := re.fullmatch(r"(\w+)=(.*)", line):
                found[match[1]] = [*found.get(match[1], []), match[2]] if match[2] else []
    return found


def exec_start(*paths: Path, instance: str, state: Path, variables: Mapping[str, str]) -> list[str]:
    """The words of ExecStart, as systemd expands them: %i, %S, and $NAME to any number of words."""
    (line,) = unit(*paths)["ExecStart"]
    words: list[str] = []
    for word in line.replace("%i", instance).replace("%S", str(state)).split():
        words += shlex.split(variables[word[1:]]) if word.startswith("$") else [word]
    return words


def seconds(text: str) -> int:
    """A time as compose and systemd write it."""
    number, each = re.fullmatch(r"(\d+)(s|m|min)?", text).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 1, "m": 60, "min": 60, None: 1}[each]
