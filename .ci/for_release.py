"""Prepare a checkout for a build that leaves it: links of README.md become whole, and the package names its project.

    python .ci/for_release.py https://github.com/OWNER/NAME v0.1.0

An index of packages shows README.md without the files beside it. So relative links lead to the tag's files, and
pictures to their bytes. The tag must be that of the version.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")


def with_whole_links(text: str, url: str, tag: str) -> str:
    """README.md with links to the files of `tag` at `url`."""

    def whole(found: re.Match[str]) -> str:
        kind = "raw" if found[1] else "blob"
        return f"{found[1]}[{found[2]}]({url}/{kind}/{tag}/{found[3]})"

    return LINK.sub(whole, text)


def with_urls(text: str, url: str) -> str:
    """pyproject.toml with the project's addresses."""
    urls = {
        "Homepage": url,
        "Documentation": f"{url}/tree/main/docs",
        "Issues": f"{url}/issues",
        "Changelog": f"{url}/blob/main/CHANGELOG.md",
    }
    table = "".join(f'{name} = "{address}"\n' for name, address in urls.items())
    return text.replace("[project.scripts]\n", f"[project.urls]\n{table}\n[project.scripts]\n", 1)


def main(url: str, tag: str) -> None:
    project = ROOT / "pyproject.toml"
    text = project.read_text()
    version = re.search(r'^version = "(.+)"$', text, re.MULTILINE)
    if version is None or tag != f"v{version[1]}":
        raise SystemExit(f"the tag {tag} is not that of the version in pyproject.toml")
    project.write_text(with_urls(text, url))
    readme = ROOT / "README.md"
    readme.write_text(with_whole_links(readme.read_text(), url, tag))


if __name__ == "__main__":
    main(*sys.argv[1:])
