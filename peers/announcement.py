"""What `up` and `join` say before they start a peer: which network, with which settings, on which addresses."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from gossipdp.config import AUTO, Config
from gossipdp.runtime.home_paths import homes_of_user
from gossipdp.runtime.network.addresses import Choice
from peers.advertising import all_private
from peers.config_text import value_in
from peers.home import KEPT, NETWORK
from peers.tables import TERMINAL_WIDTH

__all__ = ["continuing", "founding", "inherited", "joining"]

LABEL = 12
"""width of a label with its indentation"""
EXPECTED: Mapping[str, tuple[str, ...]] = {"local": ("loopback", "private"), "lan": ("private",)}
"""kinds of address that serve all hosts of a preset"""
MOST_SHOWN = 40
"""characters of a value"""


def founding(home: Path, config: Config, choice: Choice | None) -> list[str]:
    """The lines of a peer that may found its network. choice: its addresses; None if they depend on a free port."""
    lines = [f"founding network {config.network.name}; home {home}"]
    lines += _row("preset", config.preset)
    if settings := _settings(config):
        lines += _row("settings", "; ".join(settings))
    if choice is None:
        lines += _row("address", "chosen at the start; the log names it")
    else:
        lines += _row("address", f"{', '.join(choice.addresses) or 'none'} ({choice.why})")
        lines += _warning(config, choice)
    return [*lines, *_row("next", f"`{_command(home)} invite` lets another host join")]


def continuing(home: Path, config: Config) -> list[str]:
    """The lines of a peer whose home belongs to a network."""
    kept = [f"{key} = {value_in(config, f'network.{key}')}" for key in KEPT if _of_home(config, f"network.{key}")]
    return [
        f"continuing in network {config.network.name}; home {home}",
        *(_row("kept", f"{'; '.join(kept)}: a flag of an earlier start") if kept else ()),
        *_row("next", f"`{_command(home)} invite` lets another host join"),
    ]


def joining(home: Path, network: str, seeds: Sequence[str]) -> list[str]:
    """The lines of a peer that was invited."""
    return [f"joining network {network}; home {home}", *_row("seeds", ", ".join(seeds) or "no address")]


def inherited(origin: str) -> bool:
    """Whether a value comes from a preset or the home's network, and not from the operator."""
    return origin.startswith("preset ") or origin.endswith(f"/{NETWORK}")


def _of_home(config: Config, key: str) -> bool:
    return config.origins.get(key, "").endswith(f"/{NETWORK}")


def _settings(config: Config) -> list[str]:
    found = []
    for key, origin in config.origins.items():
        if key != "network.name" and not inherited(origin):
            value = value_in(config, key)
            found.append(f"{key} = {value if len(value) <= MOST_SHOWN else value[: MOST_SHOWN - 3] + '...'}")
    return found


def _warning(config: Config, choice: Choice) -> list[str]:
    """Why other hosts may be unable to use the invite, or nothing."""
    kind = all_private(choice.addresses)
    if kind and config.network.nat == AUTO:
        return _row("router", "asked for a port; the log says which one, or why there is none")
    if not choice.addresses:
        text = "No other host can join: this peer only dials out."
    elif choice.lacks:
        text = f"Other hosts can probably not reach this one: {choice.lacks}."
    elif not kind or config.network.advertise != (AUTO,) or kind in EXPECTED.get(config.preset, ()):
        return []
    else:
        text = (
            f"The invite will hold only {kind} addresses, which hosts of other networks cannot dial. "
            "If they reach this host at another address, add --advertise HOST[:PORT]."
        )
    return _row("warning", text)


def _command(home: Path) -> str:
    return "gossipdp" if home.parent == homes_of_user() else f"gossipdp --home {home}"


def _row(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        TERMINAL_WIDTH,
        initial_indent=f"  {label:<{LABEL - 2}} ",
        subsequent_indent=" " * (LABEL + 1),
        break_long_words=False,
        break_on_hyphens=False,
    )
