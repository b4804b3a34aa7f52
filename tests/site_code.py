"""Loads the code of the site, which is in no package."""

import importlib.util
from pathlib import Path
from types import ModuleType

SITE = Path(__file__).parents[1] / "docs" / "site"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SITE / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
