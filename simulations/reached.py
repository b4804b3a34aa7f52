"""Which functions of the project a run calls, and whether a mutation stands in one of them.

    python -m simulations.reached FILE simulations.cluster --seed 1 --count 40

runs the module with these words, and lists in FILE what of the tree it stands in was called. A run in virtual time is
the same from its seed to the last event: until a changed function is called, a broken tree does what the unbroken one
does. A mistake in a function that is never called need not be played. What is judged by it stands in `mutations`.
"""

from __future__ import annotations

import ast
import runpy
import sys
from collections.abc import Set
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from simulations.mistakes.base import Mutation

__all__ = ["Called", "read", "stands_in"]

Called = Set[tuple[str, int]]
"""(file, from the tree's root; first line, that of its first decorator if it has one) of each function"""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def stands_in(mutation: Mutation, tree: Path, called: Called) -> bool:
    """May a run that calls these functions of the unbroken `tree` execute what `mutation` changes?"""
    text = (tree / mutation.path).read_text()
    at = text.index(mutation.old)
    first = text.count("\n", 0, at) + 1
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, Function)]
    for line, words in enumerate(mutation.old.split("\n"), first):
        if words.strip():
            around = [node for node in functions if node.body[0].lineno <= line <= (node.end_lineno or 0)]
            if not around:
                return True  # every import executes it
            node = max(around, key=lambda node: node.lineno)
            begins = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            # What numba has compiled is called without anybody being told.
            compiled = any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)
            if compiled or (mutation.path, begins) in called:
                return True
    return False


def read(file: Path) -> Called:
    lines = (line.rsplit(":", 1) for line in file.read_text().splitlines())
    return {(path, int(first)) for path, first in lines}


def main() -> None:
    file, module, *words = sys.argv[1:]
    root = Path(__file__).resolve().parent.parent
    codes: set[CodeType] = set()

    def heard(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    sys.argv = [module, *words]
    sys.setprofile(heard)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        sys.setprofile(None)
        inside = {code for code in codes if Path(code.co_filename).is_relative_to(root)}
        names = {(str(Path(code.co_filename).relative_to(root)), code.co_firstlineno) for code in inside}
        Path(file).write_text("".join(f"{path}:{first}\n" for path, first in sorted(names)))


if __name__ == "__main__":
    main()
