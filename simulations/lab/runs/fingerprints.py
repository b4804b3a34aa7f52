"""Fingerprints of the project's own code, which tell the results of one code from those of another.

Modules are read as text and followed by their import statements. None of them is imported.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

__all__ = ["ROOT", "SourceSnapshot", "fingerprint"]

ROOT: Final = Path(__file__).resolve().parents[3]


class SourceSnapshot:
    """The project's modules, each as it was on disk at the first request."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, frozenset[str]]] = {}

    def fingerprint(self, modules: Iterable[str], *, shallow: str | None = None, texts: Iterable[str] = ()) -> str:
        """Hash of these modules of the project and of everything of the project that they import.

        Comments, docstrings, import statements and names of modules do not count, so a move changes nothing.

        Args:
            modules: dotted names.
            shallow: prefix of modules that count, but whose imports do not.
            texts: modules that count too, but whose imports do not.
        """
        done: set[str] = set()
        todo = sorted(modules)
        while todo:
            name = todo.pop()
            if name in done:
                continue
            done.add(name)
            if shallow is None or not name.startswith(shallow):
                todo.extend(self._parsed(name)[1] - done)
        told = "\n".join(sorted(self._parsed(name)[0] for name in done.union(texts)))
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    def _parsed(self, name: str) -> tuple[str, frozenset[str]]:
        if name not in self._known:
            self._known[name] = _parsed(name)
        return self._known[name]


_FIRST: Final = SourceSnapshot()


def fingerprint(modules: Iterable[str], *, shallow: str | None = None, texts: Iterable[str] = ()) -> str:
    """Hash of modules as they were when this process first asked for them (see `SourceSnapshot`)."""
    return _FIRST.fingerprint(modules, shallow=shallow, texts=texts)


def _path(name: str) -> Path | None:
    base = ROOT.joinpath(*name.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


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
            found |= {one if _path(one) else node.module for one in inner}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_ignored(one)]  # type: ignore[attr-defined]
    digest = hashlib.sha256(ast.dump(tree).encode()).hexdigest()
    ours = {one for one in found if one.partition(".")[0] in {"gossipdp", "peers", "simulations"} and _path(one)}
    return digest, frozenset(ours - {name})


def _is_ignored(node: ast.stmt) -> bool:
    """Whether this is an import or a string statement, which do not change what the code computes."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return isinstance(node, ast.Import | ast.ImportFrom)
