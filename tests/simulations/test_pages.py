"""Pages in Markdown: the modules and files that they name exist."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("simulations/**/*.md"))
)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_only_modules_and_files_that_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    modules = set(re.findall(r"python -m ((?:simulations|peers|gossipdp)[.\w]*\w)", text))
    assert {name for name in modules if not _found(name)} == set()
    paths = set(re.findall(r"`((?:gossipdp|peers|simulations|tests|docs)/[\w/.]+)`", text))
    assert {path for path in paths if not ROOT.joinpath(path).exists()} == set()
    links = set(re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text))
    assert {link for link in links if "://" not in link and not (ROOT / page).parent.joinpath(link).exists()} == set()


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
