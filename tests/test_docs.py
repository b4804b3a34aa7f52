"""The parts of the site that are made from the code. `make docs` builds the site itself and checks its links."""

from __future__ import annotations

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


drawings = load("drawings")


def test_a_drawn_block_becomes_its_picture_and_a_changed_one_stays_text() -> None:
    page = (SITE.parent / "design" / "safety.md").read_text("utf-8")
    (block,) = drawings.BLOCK.findall(page)
    shown = drawings.replace(page, "pictures")
    assert f"](pictures/{drawings.name(block)}){{.drawing}}" in shown and "```" not in shown
    changed = drawings.replace(page.replace(block, block + "    a --> b\n"), "pictures")
    assert "```text\n" + block in changed and "pictures" not in changed


def test_pictures_load_nothing_and_hold_no_script() -> None:
    pictures = list((SITE / "drawings").glob("*.svg"))
    assert pictures
    for picture in pictures:
        text = picture.read_text("utf-8")
        assert text.startswith("<svg") and "<script" not in text and "href=" not in text and "@import" not in text
