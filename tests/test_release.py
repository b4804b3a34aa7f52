"""What a release needs: a version, and a README whose links work without the files beside it."""

import re
import runpy
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import gossipdp

ROOT = Path(__file__).parents[1]
RELEASE = runpy.run_path(str(ROOT / ".ci" / "for_release.py"))
URL = "https://example.org/owner/name"


def test_version_is_that_of_the_installed_package() -> None:
    assert gossipdp.__version__ == version("gossipdp")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert re.search(rf"^version: {re.escape(project['version'])}$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert f"## {project['version']} " in (ROOT / "CHANGELOG.md").read_text()


def test_links_of_the_readme_become_whole() -> None:
    text = RELEASE["with_whole_links"]((ROOT / "README.md").read_text(), URL, "v1.2")
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)\s]+)\)", text)
    assert len(links) > 15
    for picture, link in links:
        kind = "raw" if picture else "blob"
        assert link.startswith(("#", f"{URL}/{kind}/v1.2/")), link
        path = link.removeprefix(f"{URL}/{kind}/v1.2/").partition("#")[0]
        assert link.startswith("#") or (ROOT / path).is_file(), path


def test_links_that_are_whole_stay() -> None:
    text = "[a](https://b.c/d) [e](#f) ![g](h.png) [i](j/k.md#l)"
    wanted = f"[a](https://b.c/d) [e](#f) ![g]({URL}/raw/v1/h.png) [i]({URL}/blob/v1/j/k.md#l)"
    assert RELEASE["with_whole_links"](text, URL, "v1") == wanted


def test_the_project_gets_its_addresses() -> None:
    project = tomllib.loads(RELEASE["with_urls"]((ROOT / "pyproject.toml").read_text(), URL))["project"]
    assert project["urls"]["Homepage"] == URL and project["urls"]["Issues"] == f"{URL}/issues"
    assert project["scripts"] == {"gossipdp": "gossipdp.launch:main"}


def test_a_tag_of_another_version_is_refused() -> None:
    with pytest.raises(SystemExit, match="v9"):
        RELEASE["main"](URL, "v9")
