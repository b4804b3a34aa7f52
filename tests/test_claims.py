"""Each claim of `docs/claims` still stands on its page, and what shows it exists."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from peers.cli import cli
from tests.test_citations import ROOT, defined, missing

LISTS = sorted((ROOT / "docs" / "claims").glob("*.toml"))
CLAIMS = [(path.stem, claim) for path in LISTS for claim in tomllib.loads(path.read_text("utf-8"))["claim"]]
LISTED = {page for page, _ in CLAIMS}
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"(?:python -m (?P<module>[\w.]+)|make (?P<target>[\w-]+)|gossipdp (?P<command>\w+))\b")
COMMITTED = re.compile(r"git show (?P<commit>[0-9a-f]{7,40}):(?P<path>\S+)")
"""a file of a commit that the page names, which later commits removed"""


def page_of(name: str) -> Path:
    at_root = ROOT / f"{name}.md"
    return at_root if at_root.exists() else ROOT / "docs" / f"{name}.md"


def plain(text: str) -> str:
    """A text without line breaks and runs of spaces."""
    return " ".join(text.split())


def in_git(name: str) -> bool:
    """Whether the repository has this object."""
    return subprocess.run(["git", "-C", ROOT, "cat-file", "-e", name], check=False, capture_output=True).returncode == 0


def untrue(shown: str) -> str:
    """What a claim's evidence lacks, and "" for one that exists."""
    if shown.startswith("tests/"):
        return ", ".join(missing(shown))
    if match := COMMITTED.fullmatch(shown):
        # A shallow clone lacks the commit.
        return shown if in_git(match["commit"]) and not in_git(f"{match['commit']}:{match['path']}") else ""
    if match := COMMAND.match(shown):
        module, target, command = match["module"], match["target"], match["command"]
        if module:
            place = ROOT / module.replace(".", "/")
            return "" if place.with_suffix(".py").exists() or (place / "__main__.py").exists() else module
        if target:
            return "" if re.search(rf"^{target}:", (ROOT / "Makefile").read_text("utf-8"), re.M) else target
        return "" if command in cli.commands else str(command)
    path, _, name = shown.partition(":")
    if not (ROOT / path).exists():
        return path
    return name if name and name not in defined(ROOT / path) else ""


@pytest.mark.parametrize("page", sorted(LISTED))
def test_each_claim_stands_on_its_page(page: str) -> None:
    text = plain(page_of(page).read_text("utf-8"))
    assert not [claim["says"] for name, claim in CLAIMS if name == page and plain(claim["says"]) not in text]


def test_what_shows_a_claim_exists() -> None:
    assert not [(page, lack) for page, claim in CLAIMS for each in claim["shown_by"] if (lack := untrue(each))]
    assert all(claim["shown_by"] for _, claim in CLAIMS)


def test_a_page_names_the_commits_that_show_its_claims() -> None:
    named = {
        (page, match["commit"])
        for page, claim in CLAIMS
        for each in claim["shown_by"]
        if (match := COMMITTED.fullmatch(each))
    }
    assert not [(page, commit) for page, commit in named if commit not in page_of(page).read_text("utf-8")]
