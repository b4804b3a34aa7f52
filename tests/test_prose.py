"""No decision hangs on text that is made for people: causes are values (enums), and text is made where it is shown."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PATHS = sorted(path for part in ("gossipdp", "peers") for path in (ROOT / part).rglob("*.py"))
PROSE = {"reason", "why", "cause", "seen", "text", "said"}
"""names of fields and variables that hold text for people"""
FOREIGN = {
    "gossipdp/config_rules.py": "values of settings, as people write them",
    "gossipdp/runtime/network/invite.py": "an invite, as people paste it",
    "gossipdp/runtime/network/reach.py": "an IPv6 address with its scope",
    "peers/commands/checkpoint.py": "the name of a checkpoint, or a path",
    "peers/config_text.py": "the first sentence of a comment, for a heading",
    "peers/decisions.py": "a peer's id, as people write it",
    "peers/doctor/host.py": "line breaks, for a line of a table",
    "peers/invites.py": "an invite, as people paste it",
    "peers/plan/network.py": "numbers with units, as people write them",
    "peers/report/gather.py": "lines of a log file, whose advice has a column of its own",
    "peers/tables.py": "line breaks, for a narrow terminal",
}
"""file -> the text that it has to read although people write it, or only sets"""


def name_of(node):
    """The last name of an expression, and "" for one that has none."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(node.value)


def decisions(tree):
    """Comparisons and searches of prose with a text."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=others):
                for one, other in zip([left, *others], others, strict=False):
                    if any(map(is_text, (one, other))) and {name_of(one), name_of(other)} & PROSE:
                        yield f"line {node.lineno}: {ast.unparse(node)}"
            case ast.Call(func=ast.Attribute(value=of, attr="startswith" | "endswith" | "partition" | "split")):
                if name_of(of) in PROSE:
                    yield f"line {node.lineno}: {ast.unparse(node)}"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re")), args=args):
                if any(name_of(each) in PROSE for each in args):
                    yield f"line {node.lineno}: {ast.unparse(node)}"


def test_no_decision_hangs_on_prose():
    found = {}
    for path in PATHS:
        if told := sorted(set(decisions(ast.parse(path.read_text())))):
            found[str(path.relative_to(ROOT))] = told
    assert found.keys() == FOREIGN.keys(), found


@pytest.mark.parametrize(
    "source",
    [
        "if event.reason == 'lost': ...",
        "if 'dialled' in why: ...",
        "if error.seen.startswith('frozen'): ...",
        "code, _, text = text.partition(' ')",
        "re.match('GD-...', self.text)",
    ],
)
def test_decisions_on_prose_are_seen(source):
    assert list(decisions(ast.parse(source)))
