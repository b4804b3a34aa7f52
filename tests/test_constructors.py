"""Objects of the protocol are built in one order, each from objects that exist. So no constructor takes a callback."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PATHS = sorted((ROOT / "gossipdp/protocol").rglob("*.py"))
TREES = {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in PATHS}
KEYS = {"sign", "verify"}
"""functions of a key, which no object of the protocol owns"""


def functions(node, *, properties=False):
    """The names of the functions that a class or function holds itself: its methods, or its properties."""
    found = [part for part in node.body if isinstance(part, ast.FunctionDef)]
    return {part.name for part in found if ("property" in map(ast.unparse, part.decorator_list)) is properties}


NODES = [node for tree in TREES.values() for node in ast.walk(tree)]
CLASSES = [node for node in NODES if isinstance(node, ast.ClassDef)]
NAMES = {node.name for node in CLASSES}
CALLABLE = {"Callable"} | {node.name for node in CLASSES if "__call__" in functions(node)}
STORED = {node.attr for node in NODES if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
FIELDS = {part.target.id for node in CLASSES for part in node.body if isinstance(part, ast.AnnAssign)}
PROPERTIES = {name for node in CLASSES for name in functions(node, properties=True)}
METHODS = {name for node in CLASSES for name in functions(node)} - STORED - FIELDS - PROPERTIES - KEYS
"""names that are those of methods wherever they occur"""


def taken(tree):
    """The callables that constructors take: as parameters of `__init__`, or as fields."""
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        inits = [part.args for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
        given = [(each.arg, each.annotation) for args in inits for each in (*args.args[1:], *args.kwonlyargs)]
        fields = [(part.target.id, part.annotation) for part in node.body if isinstance(part, ast.AnnAssign)]
        for name, annotation in (*given, *fields):
            types = {part.id for part in ast.walk(annotation) if isinstance(part, ast.Name)}
            if types & CALLABLE and name not in KEYS:
                yield f"{node.name} takes {name}"


def passed(tree):
    """The callables, and the owners, that constructors of the package are given."""
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)):
        for call in (node for node in ast.walk(owner) if isinstance(node, ast.Call)):
            made = ast.unparse(call.func).rpartition(".")[2]
            for value in (*call.args, *(each.value for each in call.keywords)) if made in NAMES else ():
                inside = (value, *getattr(value, "elts", ()), *getattr(value, "values", ()))
                yield from (f"{made} gets {ast.unparse(part)}" for part in inside if stands_in(part, owner))


def stands_in(value, owner):
    """Whether this expression, in a class or function, is a function, a bound method or the object itself."""
    match value:
        case ast.Lambda() | ast.Call(func=ast.Name(id="partial")) | ast.Name(id="self"):
            return True
        case ast.Name(id=name):
            return isinstance(owner, ast.FunctionDef) and name in functions(owner)
        case ast.Attribute(value=ast.Name(id="self"), attr=name) if isinstance(owner, ast.ClassDef):
            return name in functions(owner)
        case ast.Attribute(attr=name):
            return name in METHODS
    return False


def faults(tree):
    return sorted({*taken(tree), *passed(tree)})


def test_no_constructor_takes_a_callback_or_its_owner():
    assert not {path: told for path, tree in TREES.items() if (told := faults(tree))}


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n def __init__(self, *, told: Callable[[], None]): ...",
        "class A:\n told: dict[str, Callable[[], None]]",
        "class A:\n def b(self): Outputs(lambda: None)",
        "class A:\n def b(self): Outputs(told=partial(print, 1))",
        "class A:\n def b(self): outputs.Outputs(self.b)",
        "class A:\n def b(self): Outputs([self])",
        "class A:\n def b(self): Outputs(self._strikes.judge)",
        "def a():\n def b(): ...\n Outputs({1: b})",
    ],
)
def test_faults_are_seen(source):
    assert faults(ast.parse(source))
