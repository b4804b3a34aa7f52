"""Every citation of a design page, every link of a document and every path that a document names leads somewhere."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.site_code import load

ROOT = Path(__file__).parents[1]
DESIGN = ROOT / "docs" / "design"
CITING = [path for folder in ("gossipdp", "peers", "simulations", "tests") for path in (ROOT / folder).rglob("*.py")]
PAGES = [
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "simulations").rglob("*.md"),
    *(page for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md") if page.exists()),
]

SECTION = re.compile(r"\b(algorithms|architecture|protocol)(?:\.md|,)? sections? (\d+\w?)(?: and (\d+\w?))?", re.I)
RULE = re.compile(r"\balgorithms section 9, (?:invariants? )?(\d+(?:(?:, | and |, and )\d+)*)", re.I)
NUMBERED = re.compile(r"\bsafety(?:\.md)?[,:]? ((?:[IT]\d+(?:, | to | and )?)+)")
VIOLATED = re.compile(r"""["'(](I\d+)[ :]""")
"""of a failure message"""
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"`((?:gossipdp|peers|simulations|tests)/[\w./-]+)`")
PLACED = re.compile(r"((?:`[\w.]+`(?:, | and )?)+) in `([\w/]+\.py)`")
"""names and the file in which a page places them"""
GENERATED = re.compile(r"^<!-- generated: (\w+) -->$", re.M)
"""what the site puts into a page"""
DOTTED = re.compile(r"`((?:\w+\.){2,})(\w+)`")
"""a name after its module, such as `protocol.presets.PRESETS`"""


@cache
def prose(page: Path) -> str:
    """Its text as the site shows it, without blocks of code."""
    text = GENERATED.sub(lambda match: getattr(load("reference"), match[1])(), page.read_text("utf-8"))
    return re.sub(r"^( *)```.*?^\1```", "", text, flags=re.M | re.S)


def headings(page: Path) -> list[str]:
    return re.findall(r"^#+ +(.+?) *$", prose(page), re.M)


def anchors(page: Path) -> set[str]:
    """What a link to a heading of it may say, as GitHub makes it from the heading."""
    found: Counter[str] = Counter()
    names = set()
    for heading in headings(page):
        name = re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", heading).lower()).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if found[name] else name)
        found[name] += 1
    return names | set(re.findall(r"^\(([\w-]+)\)=$", prose(page), re.M))


def numbers(page: str) -> set[str]:
    """Of its sections."""
    return {heading.split(". ")[0] for heading in headings(DESIGN / f"{page}.md")}


def rows(page: str, pattern: str) -> set[str]:
    """First words of the rows of its tables."""
    return set(re.findall(rf"^\| ({pattern})\b", (DESIGN / f"{page}.md").read_text("utf-8"), re.M))


@cache
def texts() -> list[tuple[Path, str]]:
    """What may cite, without line breaks."""
    return [(path.relative_to(ROOT), re.sub(r"\s+(?:# )?", " ", path.read_text("utf-8"))) for path in [*CITING, *PAGES]]


def cited(pattern: re.Pattern[str]) -> Iterator[tuple[Path, tuple[str, ...]]]:
    for path, text in texts():
        for match in pattern.finditer(text):
            yield path, tuple(filter(None, match.groups()))


def test_cited_sections_exist() -> None:
    known = {page: numbers(page) for page in ("algorithms", "architecture", "protocol")}
    found = [(path, page.lower(), number) for path, (page, *each) in cited(SECTION) for number in each]
    assert len(found) > 80
    assert not [each for each in found if each[2] not in known[each[1]]]


def test_cited_rules_of_section_9_exist() -> None:
    known = rows("algorithms", r"\d+")
    found = [(path, number) for path, (each,) in cited(RULE) for number in re.findall(r"\d+", each)]
    assert found
    assert not [each for each in found if each[1] not in known]


def test_cited_invariants_and_campaigns_exist() -> None:
    known = rows("safety", r"[IT]\d+")
    found = [(path, name) for path, (each,) in cited(NUMBERED) for name in re.findall(r"[IT]\d+", each)]
    found += [(path, name) for path, (name,) in cited(VIOLATED) if path.suffix == ".py"]
    assert len(found) > 50
    assert not [each for each in found if each[1] not in known]


def test_links_lead_to_files_and_headings() -> None:
    broken = []
    for page in PAGES:
        for link in LINK.findall(prose(page)):
            if re.match(r"\w+:", link):
                continue
            target, _, anchor = link.partition("#")
            there = (page.parent / target).resolve() if target else page
            if not there.exists() or (anchor and anchor not in anchors(there)):
                broken.append((str(page.relative_to(ROOT)), link))
    assert not broken


def test_paths_that_pages_name_exist() -> None:
    named = {(page.name, path) for page in PAGES for path in NAMED.findall(page.read_text("utf-8"))}
    assert len(named) > 50
    assert not sorted((page, path) for page, path in named if not (ROOT / path).exists())


# -- tests that pages name -------------------------------------------------------------------------------------------

ARGUMENTS = re.compile(r"`(tests/[^`*]+)`")
"""of pytest"""
TEST_NAME = re.compile(r"^\s*(?:(?:async )?def (?=test_)|class )(\w+)", re.M)


def missing(arguments: str) -> list[str]:
    """Paths that do not exist, and words of `-k` that no test there has in its name. Numbers are those of seeds."""
    paths, _, expression = arguments.partition(" -k ")
    named = [ROOT / path for path in paths.split()]
    if gone := [str(path) for path in named if not path.exists()]:
        return gone
    files = [file for path in named for file in ([path] if path.is_file() else path.rglob("test_*.py"))]
    names = " ".join(name for file in files for name in TEST_NAME.findall(file.read_text("utf-8")))
    words = set(re.findall(r"[A-Za-z_]\w*", expression)) - {"and", "or", "not"}
    return sorted(word for word in words if word not in names)


def test_tests_that_pages_name_exist() -> None:
    named = {(page.name, each) for page in PAGES for each in ARGUMENTS.findall(page.read_text("utf-8"))}
    assert len(named) > 100
    assert not sorted((page, each) for page, each in named if missing(each))


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/security.md"])
def test_each_row_of_what_holds_names_a_test(page: str) -> None:
    tables = re.findall(r"^\|.*\| test \|\n\|[-|]+\n((?:\|.*\n)+)", (ROOT / page).read_text("utf-8"), re.M)
    rows = [row.split(" | ")[-1] for table in tables for row in table.splitlines()]
    assert rows and not [row for row in rows if not ARGUMENTS.search(row)]


# -- names of the code -----------------------------------------------------------------------------------------------


@cache
def defined(path: Path) -> set[str]:
    """Functions, classes and constants of a file, and what its classes define, such as "Peer" and "Peer.receive"."""
    nodes = ast.parse(path.read_text("utf-8")).body
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    inside = {f"{each.name}.{name}" for each in classes for node in each.body for name in names_of(node)}
    return inside.union(*map(names_of, nodes))


def names_of(node: ast.stmt) -> set[str]:
    """The names that a statement defines."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
        case ast.Assign(targets=targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
    return set()


def place(path: str) -> Path:
    """A file as pages name it: the path from the root, or from `gossipdp`."""
    return (
        ROOT / path if path.startswith(("gossipdp/", "peers/", "simulations/", "tests/")) else ROOT / "gossipdp" / path
    )


def placed(text: str) -> list[tuple[str, str]]:
    """Each name that a text places in a file, with the file."""
    return [(name, path) for names, path in PLACED.findall(text) for name in re.findall(r"`([\w.]+)`", names)]


def test_pages_place_names_in_files_that_define_them() -> None:
    found = [(path, each) for path, text in texts() if path.suffix == ".md" for each in placed(text)]
    assert len(found) > 100
    assert not [(page, each) for page, each in found if each[0] not in defined(place(each[1]))]


def test_dotted_names_lead_to_what_a_module_defines() -> None:
    found = []
    for path, text in texts():
        for dotted, name in DOTTED.findall(text):
            module = place(dotted.removeprefix("gossipdp.").replace(".", "/").removesuffix("/") + ".py")
            if module.exists():
                found.append((str(path), dotted + name, name in defined(module)))
    assert found
    assert not [each for each in found if not each[2]]


# -- the walks of architecture section 6 -----------------------------------------------------------------------------


def walks() -> list[str]:
    """The introduction of the walks and each walk, without line breaks."""
    section = (DESIGN / "architecture.md").read_text("utf-8").partition("## 6. Three walks")[2]
    return [re.sub(r"\s+", " ", text) for text in re.split(r"^### ", section, flags=re.M)]


def test_walks_name_files_functions_and_classes_that_exist() -> None:
    code = [path for folder in ("gossipdp", "peers") for path in (ROOT / folder).rglob("*.py")]
    anywhere = set[str]().union(*map(defined, code))
    text = " ".join(walks())
    paths = set(re.findall(r"`([\w/]+\.py)`", text)) - {"tests/test_citations.py"}
    assert len(paths) > 60 and not sorted(path for path in paths if not place(path).exists())
    assert len(placed(text)) > 70
    named = set(re.findall(r"`([A-Za-z_][\w.]*)`", text))
    assert not sorted(named - anywhere)


def test_walks_count_their_files() -> None:
    common, *rest = walks()
    shared = set(re.findall(r"`([\w/]+\.py)`", common.rpartition("Four files")[2]))
    assert len(shared) == 4
    for walk in rest:
        steps, _, told = walk.partition("Files to open: ")
        passed = told.partition(" * To change")[0]
        named = set(re.findall(r"`([\w/]+\.py)`", steps + passed))
        assert len(named | shared) == int(told.partition(",")[0]), walk[:40]
