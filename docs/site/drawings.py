"""Drawings of the Mermaid blocks in pages: `python docs/site/drawings.py MERMAID.JS` draws what is missing.

A code host draws Mermaid itself. The site uses pictures that are drawn beforehand, so that its pages load no script.
A picture is named after the hash of its block: a changed block is shown as text until it is drawn again.
MERMAID.JS is `dist/mermaid.min.js` of the npm package `mermaid` (11.17). Chromium must be installed.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent / "static" / "drawings"
BLOCK = re.compile(r"^```mermaid\n(.*?)^```$", re.M | re.S)

PAGE = """<script src="file://%s"></script><body><script>
mermaid.initialize({startOnLoad: false, theme: "neutral", htmlLabels: false, deterministicIds: true,
                    fontFamily: "sans-serif", flowchart: {htmlLabels: false}});
mermaid.render("d" + %s, %s).then(r => { document.body.textContent = r.svg; });
</script></body>"""


def name(block: str) -> str:
    """The file name of a block's picture."""
    return hashlib.sha256(block.encode()).hexdigest()[:12] + ".svg"


def replace(text: str, folder: str) -> str:
    """Replace each block that has a picture by that picture in `folder`; the others stay, as plain text."""

    def shown(match: re.Match[str]) -> str:
        picture = name(match[1])
        if not (FOLDER / picture).exists():
            return f"```text\n{match[1]}```"
        kind = "Sequence diagram" if match[1].startswith("sequence") else "Diagram"
        shown = f'<img src="{folder}/{picture}" alt="{kind}; its text is in the source of this page">'
        return f'<p class="drawing"><a href="{folder}/{picture}">{shown}</a></p>'

    return BLOCK.sub(shown, text)


def draw(block: str, script: Path) -> str:
    """The picture of a block as SVG, by Mermaid in headless Chromium."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(PAGE % (script.resolve(), json.dumps(name(block)[:12]), json.dumps(block)), "utf-8")
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
        command += ["--virtual-time-budget=20000", "--dump-dom", f"--user-data-dir={folder}/profile", str(page)]
        shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    svg = html.unescape(shown[shown.index("<body>") + 6 : shown.rindex("</body>")]).strip()
    if not svg.startswith("<svg") or "Syntax error" in svg:
        raise ValueError(f"Mermaid did not draw: {block[:200]}{svg[:500]}")
    return lean(svg)


def lean(svg: str) -> str:
    """The same picture without what only Mermaid's own scripts read, and with tenths of a pixel."""
    svg = re.sub(r' data-[\w-]+="[^"]*"', "", svg)
    svg = svg.replace(' font-style="normal" class="text-inner-tspan" font-weight="normal"', "").replace(' style=""', "")
    return re.sub(r"-?\d+\.\d{2,}", lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), svg)


def main(script: Path) -> None:
    pages = sorted(Path(__file__).parents[1].rglob("*.md"))
    blocks = {name(block): block for page in pages for block in BLOCK.findall(page.read_text("utf-8"))}
    FOLDER.mkdir(exist_ok=True)
    for drawn in FOLDER.glob("*.svg"):
        if drawn.name not in blocks:
            drawn.unlink()
    for picture, block in blocks.items():
        if not (FOLDER / picture).exists():
            (FOLDER / picture).write_text(draw(block, script) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
