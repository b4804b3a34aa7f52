"""The parts of the site that are made from the code. `make docs` builds the site itself and checks its links."""

import re
from collections.abc import Iterator
from textwrap import dedent

import click

from gossipdp.config_help import known_keys
from gossipdp.config_loading import load as load_config
from gossipdp.error_codes import CODES, EXITS
from gossipdp.runtime.observability.metric_table import FAMILIES, HEALTHY
from peers.cli import cli
from peers.home import presets
from tests.peers.deploy.queries import rules
from tests.site_code import SITE, load

drawings, reference = load("drawings"), load("reference")


def test_a_drawn_block_becomes_its_picture_and_a_changed_one_stays_text() -> None:
    page = (SITE.parent / "design" / "safety.md").read_text("utf-8")
    (block,) = drawings.BLOCK.findall(page)
    shown = drawings.replace(page, "pictures")
    assert f'<img src="pictures/{drawings.name(block)}" alt="' in shown and "```" not in shown
    changed = drawings.replace(page.replace(block, block + "    a --> b\n"), "pictures")
    assert "```text\n" + block in changed and "pictures" not in changed


def test_every_block_is_drawn() -> None:
    """If this fails, run `python docs/site/drawings.py MERMAID.JS`, which its head explains."""
    blocks = [block for page in SITE.parent.rglob("*.md") for block in drawings.BLOCK.findall(page.read_text("utf-8"))]
    assert {drawings.name(block) for block in blocks} == {each.name for each in drawings.FOLDER.glob("*.svg")}


def test_pictures_load_nothing_and_hold_no_script() -> None:
    pictures = list((SITE / "static" / "drawings").glob("*.svg"))
    assert pictures
    for picture in pictures:
        text = picture.read_text("utf-8")
        assert text.startswith("<svg") and "<script" not in text and "href=" not in text and "@import" not in text


def headings(text: str) -> set[str]:
    return set(re.findall(r"^#+ (.+)$", text, re.M))


def test_every_error_code_has_an_anchor_a_meaning_and_what_to_do() -> None:
    text = reference.errors()
    assert {f"gd-{code[3:]}" for code in CODES} == set(re.findall(r"^\((gd-\d+)\)=$", text, re.M))
    assert {f"{code} {entry.title}" for code, entry in CODES.items()} < headings(text)
    assert text.count("**What to do:** ") == len(CODES)
    assert all(f"| {number} | " in reference.exits() for number in EXITS)


def test_every_configuration_key_has_meaning_range_default_and_variable() -> None:
    text = reference.config()
    names = [key.name for key in known_keys()]
    assert set(names) < headings(text) and text.count("* **Default.** `") == len(names)
    assert all(f"`{key.variable}`" in text and key.meaning[:30] in text.replace("\\", "") for key in known_keys())
    assert "`50`; 30 with preset local" in text


def command_paths(group: click.Group, path: str) -> Iterator[str]:
    for name, command in group.commands.items():
        yield f"{path} {name}"
        if isinstance(command, click.Group):
            yield from command_paths(command, f"{path} {name}")


def test_every_command_and_option_is_described() -> None:
    text = reference.cli()
    assert set(command_paths(cli, "gossipdp")) | {"gossipdp"} == headings(text)
    assert "| `--expect N` | " in text and "gossipdp up [OPTIONS]" in text


def test_every_metric_is_listed_with_its_help() -> None:
    text = reference.metrics()
    rows = dict(re.findall(r"^\| `gossipdp_(\w+)` \| (.+) \|$", text, re.M))
    assert list(rows) == [family.name for family in FAMILIES]
    assert set(HEALTHY) < set(rows) and all("Healthy: " in rows[name] for name in HEALTHY)


def test_every_alert_is_listed_with_severity_and_runbook() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", reference.alerts(), re.M))
    assert list(rows) == list(rules())
    for name, rule in rules().items():
        assert rows[name].startswith(f"*{rule['labels']['severity']}")
        assert rows[name].endswith(reference.cell(rule["annotations"]["runbook"])) and "{{" not in rows[name]


def test_plain_text_stays_plain_in_markdown_and_code_stays_code() -> None:
    assert reference.escaped("see GD-101, `GD-102`") == "see [GD-101](errors.md#gd-101), `GD-102`"
    assert reference.cell("a|b *c* `d_e` <f> [g]") == r"a\|b \*c\* `d_e` \<f\> \[g\]"


# -- what pages tell a user to write -----------------------------------------------------------------------------------

PAGES = sorted(SITE.parent.glob("*.md"))


def blocks(language: str) -> list[tuple[str, str]]:
    """The blocks of code of the users' pages in one language, each with its page."""
    pattern = re.compile(rf"^( *)```{language}\n(.*?)^\1```", re.M | re.S)
    return [
        (page.name, dedent(block)) for page in PAGES for _, block in pattern.findall(page.read_text(encoding="utf-8"))
    ]


def test_python_on_pages_compiles() -> None:
    found = blocks("python")
    assert found
    for page, text in found:
        compile(text, page, "exec")


def test_configuration_on_pages_is_accepted() -> None:
    found = blocks("toml")
    assert found
    for page, text in found:
        text = re.sub(r'^(ban|allow)(.*)"<id>".*$', rf'\1 = ["{"0" * 64}"]', text, flags=re.M)
        load_config(text, file=page, presets=presets())


def test_commands_on_pages_exist() -> None:
    known = set(command_paths(cli, "gossipdp"))
    named = set()
    for page in PAGES:
        for command, sub in re.findall(r"[`$] ?gossipdp ([a-z]+)(?: ([a-z]+)\b)?", page.read_text(encoding="utf-8")):
            group = isinstance(cli.commands.get(command), click.Group)
            named.add((page.name, f"gossipdp {command} {sub}" if group and sub else f"gossipdp {command}"))
    assert len(named) > 30
    assert not sorted(each for each in named if each[1] not in known)


def test_options_of_commands_on_pages_exist() -> None:
    seen, wrong = 0, []
    for page in [*PAGES, SITE.parents[1] / "README.md"]:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(r"(?:[`$] ?|^ {4}|IMAGE )gossipdp ([^`\n]*)", text, re.M):
            command, options = cli, {each for option in cli.params for each in option.opts} | {"--help"}
            for word in line.split(" -- ")[0].split(" #")[0].split():
                if word.startswith("--"):
                    seen += 1
                    wrong += [(page.name, line)] if word.partition("=")[0].rstrip(".,;)") not in options else []
                elif isinstance(command, click.Group) and word in command.commands:
                    command = command.commands[word]
                    options |= {each for option in command.params for each in option.opts}
    assert seen > 30 and not wrong
