"""A driver gives a `Peer` commands and reads its `View`. It reaches no machine inside, and a `View` hands out none."""

import ast
import dataclasses
import enum
import inspect
import textwrap
import typing
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from gossipdp.protocol.data.leasing import Leasing
from gossipdp.protocol.peer import Peer
from gossipdp.protocol.replica import Replica
from gossipdp.protocol.view import View

ROOT = Path(__file__).resolve().parent.parent
DRIVERS = ("gossipdp/runtime", "peers", "simulations/simulator")
PATHS = sorted(path for driver in DRIVERS for path in (ROOT / driver).rglob("*.py"))
LOOK_INSIDE = {
    "simulations/simulator/cluster_processes.py": "the clocks of the peers that train, for a check",
    "simulations/simulator/invariants.py": "checks of inner state",
}
"""file -> what it reads inside on purpose"""
PEERS = {"peer", "_peer", "running"}
"""names of a Peer, among other things"""


def public(cls):
    return {name for name in vars(cls) if not name.startswith("_")}


def stored(cls):
    """The attributes that the constructor of a class sets."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls.__init__)))
    targets = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    return {node.attr for node in targets if ast.unparse(node.value) == "self"}


INSIDE = {"view": public(View) | {"config"}, "leasing": public(Leasing)}
MACHINES = {name.strip("_") for name in stored(Peer) | stored(Replica)} - INSIDE.keys() - {"id", "config"}


def names_of(node):
    """The names of a chain of attributes, the first one first."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [*([node.id] if isinstance(node, ast.Name) else []), *reversed(names)]


def beyond(tree):
    """Chains of attributes that reach into a Peer."""
    for node in ast.walk(tree):
        names = names_of(node) if isinstance(node, ast.Attribute) else []
        at = next((at for at, name in enumerate(names) if name in PEERS), len(names))
        first, second = (*names[at + 1 : at + 3], "", "")[:2]
        if first in MACHINES or (first and first[0] == "_") or (second and second not in INSIDE.get(first, {second})):
            yield ".".join(names)


def test_drivers_reach_no_machine_of_a_peer():
    found = {}
    for path in PATHS:
        if told := sorted(set(beyond(ast.parse(path.read_text())))):
            found[str(path.relative_to(ROOT))] = told
    assert found.keys() == LOOK_INSIDE.keys(), found


def test_peer_shows_its_id_its_settings_its_view_and_its_leases():
    assert {name for name in stored(Peer) if name[0] != "_"} == {"id", "config", "view", "leasing"}


@pytest.mark.parametrize(
    "source",
    [
        "peer.replica.model",
        "membership = self._peer.membership",
        "peer.view._replica",
        "host.running._replica.rounds",
        "peer.leasing._tables",
    ],
)
def test_reach_inside_is_seen(source):
    assert list(beyond(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    ["peer.view.me.name", "peer.leave(now)", "peer.leasing.open(data, now)", "peer.id.hex()", "link.peer.hex()"],
)
def test_commands_and_values_are_allowed(source):
    assert not list(beyond(ast.parse(source)))


# -- values --------------------------------------------------------------------------------------------------------


def is_value(kind):
    """Whether the type is a plain value, a frozen record, or a read-only collection of them."""
    if parts := typing.get_args(kind):
        whole = typing.get_origin(kind) in (tuple, frozenset, Mapping, typing.Union, type(int | str))
        return whole and all(part is Ellipsis or is_value(part) for part in parts)
    frozen = getattr(getattr(kind, "__dataclass_params__", None), "frozen", False)
    frozen = frozen or (issubclass(kind, msgspec.Struct) and kind.__struct_config__.frozen)
    return frozen or issubclass(kind, int | float | bytes | str | type(None) | enum.Enum | tuple)


def kinds():
    """name -> type of what a View hands out under that name"""
    made = typing.get_type_hints(View.__init__)["config"]
    for name, member in inspect.getmembers(View):
        if not name.startswith("_"):
            yield name, typing.get_type_hints(getattr(member, "fget", member))["return"]
    yield "config", made


def test_view_hands_out_values_alone():
    assert len(dict(kinds())) > 40 and [name for name, kind in kinds() if not is_value(kind)] == []


def test_machine_is_no_value():
    assert not is_value(Leasing) and not is_value(list[int]) and not is_value(Leasing | None)
    assert is_value(dataclasses.make_dataclass("A", [], frozen=True))
