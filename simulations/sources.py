"""Fingerprints of the project's own code, by which results are told from those of other code.

Nothing is imported here that is looked at: modules are read as text, and followed by their import statements.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["ROOT", "fingerprint"]

ROOT: Final = Path(__file__).resolve().parent.parent


def fingerprint(modules: Iterable[str], *, shallow: str | None = None) -> str:
    """Of these modules of the project and all that they import of it; comments and docstrings do not count.

    Args:
        shallow: modules whose names begin so are looked at, but what they import is not.
    """
    done: set[str] = set()
    todo = sorted(modules)
    while todo:
        name = todo.pop()
        if name in done:
            continue
        done.add(name)
        if shallow is None or not name.startswith(shallow):
            todo.extend(_parsed(name)[1] - done)
    told = "\n".join(f"{name} {_parsed(name)[0]}" for name in sorted(done))
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _path(name: str) -> Path | None:
    base = ROOT.joinpath(*name.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


@cache
def _parsed(name: str) -> tuple[str, frozenset[str]]:
    """Hash of a module's statements, and the modules of the project that it imports."""
    path = _path(name)
    if path is None:
        raise ModuleNotFoundError(f"no module {name!r} in {ROOT}")
    tree = ast.parse(path.read_text())
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {one for one in inner if _path(one)} or {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        body = getattr(node, "body", None)
        if isinstance(body, list):
            # A string that is a statement says something to readers alone.
            node.body = [one for one in body if not (isinstance(one, ast.Expr) and _is_text(one.value))]  # type: ignore[attr-defined]
    digest = hashlib.sha256(ast.dump(tree).encode()).hexdigest()
    ours = {one for one in found if one.partition(".")[0] in {"gossipdp", "peers", "simulations"} and _path(one)}
    return digest, frozenset(ours - {name})


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
