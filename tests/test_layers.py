"""Executes the import tables of docs/design/architecture.md section 3. The daemon starts without torch."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STDLIB = set(sys.stdlib_module_names)
PAGE = ROOT / "docs/design/architecture.md"
OURS = {"gossipdp", "peers", "simulations", "tests"}
ALONE = "gossipdp/runtime/link"
"""the row that does not inherit those above it"""


def tables():
    """The tables of section 3: package -> (project imports, third-party imports), and module -> files."""
    section = PAGE.read_text().partition("## 3. ")[2].partition("\n## ")[0]
    rows = [
        [re.findall(r"`([^`]+)`", cell) for cell in line.strip("| ").split("|")]
        for line in section.splitlines()
        if line.startswith("| `")
    ]
    packages = {row[0][0]: (set(row[1]), set(row[2])) for row in rows if len(row) == 3}
    return packages, {row[0][0]: set(row[1]) for row in rows if len(row) == 2}


PACKAGES, ONLY_IN = tables()


def allowed(path, column):
    """What the rows of the folders above a file allow it."""
    folders = [str(parent) for parent in path.relative_to(ROOT).parents]
    rows = [ALONE] if ALONE in folders else [folder for folder in folders if folder in PACKAGES]
    return set().union(*(PACKAGES[row][column] for row in rows))


PROTOCOL_NEVER = {
    "time",
    "threading",
    "socket",
    "asyncio",
    "select",
    "selectors",
    "subprocess",
    "multiprocessing",
    "os",
    "secrets",
}
NEVER_ANYWHERE = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}


def modules(folder):
    return sorted(path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts)


@cache
def parsed(path):
    return ast.parse(path.read_text())


@cache
def imports(path):
    """Dotted names imported anywhere in the file, with what is taken from them; TYPE_CHECKING blocks included."""
    package = ".".join(path.relative_to(ROOT).with_suffix("").parts[:-1])
    found = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found += [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
                base = f"{above}.{base}".rstrip(".")
            found.append((base, tuple(alias.name for alias in node.names)))
    return found


def calls(path):
    """The calls in a file."""
    return [node for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]


def dotted(path):
    """Every import as full dotted names: `from a import b` is both a and a.b."""
    for base, names in imports(path):
        yield base
        yield from (f"{base}.{name}" for name in names)


def under(name, allowed):
    return any(name == root or name.startswith(root + ".") for root in allowed)


def module_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(path):
    """The modules of the project that a file imports."""
    found = set()
    for base, names in imports(path):
        full = {f"{base}.{name}" for name in names}
        found |= (full & MODULES) | ({base} & MODULES if full - MODULES or not names else set())
    return found - {module_of(path)}


FILES = [path for folder in ("gossipdp", "peers", "simulations") for path in modules(folder)]


MODULES = {module_of(path) for path in FILES}


def test_tables_of_the_page_are_read():
    assert {"gossipdp/protocol", ALONE, "gossipdp/training", "peers", "simulations"} <= PACKAGES.keys()
    assert {"zmq", "prometheus_client"} <= ONLY_IN.keys()
    assert set().union(*(project for project, _ in PACKAGES.values())) <= MODULES, "a row names no module"


def against_the_table(path):
    """What a file imports beyond the table."""
    project, third_party = allowed(path, 0), allowed(path, 1)
    if path.parent == ROOT / "gossipdp":
        project, third_party = {"gossipdp"}, third_party | {"msgspec"}
    for base, names in imports(path):
        if base.partition(".")[0] not in OURS:
            if base.partition(".")[0] not in STDLIB | third_party:
                yield base
        elif not under(base, project):
            full = {f"{base}.{name}".rstrip(".") for name in names or ("",)}
            yield from (name for name in sorted(full) if not under(name, project))


def test_imports_are_those_of_the_table():
    faults = {str(path.relative_to(ROOT)): found for path in FILES if (found := list(against_the_table(path)))}
    assert not faults


def test_imports_have_no_circle():
    graph = {module_of(path): imported(path) for path in FILES}
    while leaves := [name for name, needs in graph.items() if not needs & graph.keys()]:
        for name in leaves:
            del graph[name]
    # What is left imports a circle, or is one.
    while tops := graph.keys() - set().union(*graph.values()):
        for name in tops:
            del graph[name]
    assert not graph, f"circles among {sorted(graph)}"


def test_private_names_stay_in_their_module():
    for path in FILES:
        tree = parsed(path)
        names = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }
        ours = {name for name, full in names.items() if full in MODULES}
        for name, full in names.items():
            private = name.startswith("_") and full.partition(".")[0] in OURS
            assert not private, f"{path.relative_to(ROOT)} imports {full}"
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ours:
                private = node.attr.startswith("_") and not node.attr.startswith("__")
                assert not private, f"{path.relative_to(ROOT)} uses {ast.unparse(node)}"


PASSING_ON = {"gossipdp.protocol.membership.membership", "gossipdp.protocol.peer"}
"""modules through which other modules may import what these import themselves; packages may, too"""


def passed_on(path):
    """The names of the project that a module imports at its top and does not define."""
    body = parsed(path).body
    taken = [node for node in body if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] in OURS]
    return {f"{module_of(path)}.{alias.name}" for node in taken for alias in node.names}


def test_names_are_imported_from_the_module_that_defines_them():
    """A reader who looks for a name opens one file."""
    product = [*modules("gossipdp"), *modules("peers")]
    single = [path for path in product if path.name != "__init__.py" and module_of(path) not in PASSING_ON]
    passed = set().union(*map(passed_on, single)) - MODULES
    for path in product:
        detours = passed.intersection(dotted(path))
        assert not detours, f"{path.relative_to(ROOT)} imports {sorted(detours)}"


def test_what_is_installed_needs_no_simulation():
    for path in [*modules("gossipdp"), *modules("peers")]:
        assert not [name for name in imported(path) if under(name, {"simulations"})], path


def test_protocol_has_no_clock_thread_socket_vector_or_chance_of_its_own():
    for path in modules("gossipdp/protocol"):
        for base, names in imports(path):
            assert base.partition(".")[0] not in PROTOCOL_NEVER | {"numpy", "torch", "zmq"}, f"{path} imports {base}"
            # The type of an injected source, and nothing that would draw from the module's own.
            assert base != "random" or names == ("Random",), f"{path} imports {names or 'random'}"
        # Salted per process, so only __hash__ may use it, which orders nothing.
        hashes = [part for part in ast.walk(parsed(path)) if getattr(part, "name", "") == "__hash__"]
        salted = {id(node) for part in hashes for node in ast.walk(part)}
        names = {node.func.id for node in calls(path) if isinstance(node.func, ast.Name) and id(node) not in salted}
        assert not names & {"Random", "open", "print", "input", "id", "hash"}, path


@pytest.mark.parametrize("module", sorted(ONLY_IN))
def test_one_file_alone_touches(module):
    users = {
        str(path.relative_to(ROOT))
        for path in modules("gossipdp")
        if any(under(name, {module}) for name, _ in imports(path))
    }
    assert users <= ONLY_IN[module]


@pytest.mark.parametrize("folder", ["gossipdp", "peers"])
def test_nothing_unpickles_or_evaluates(folder):
    for path in modules(folder):
        for name in dotted(path):
            assert name.partition(".")[0] not in NEVER_ANYWHERE, f"{path.name} imports {name}"
        names = {ast.unparse(node.func) for node in calls(path)}
        if path.name in ("resume.py", "nanogpt.py", "nanogpt_gossip.py") and path.parent.name == "recipes":
            names.remove("torch.load")  # of weights only: it shows what users' scripts do
        assert not names & {"eval", "exec", "compile", "torch.load", "yaml.load"}, path


def test_library_prints_nothing_handles_no_signal_and_reads_no_stack_of_another_thread():
    # CPython 3.11 crashed where a thread followed the frames of another one that was running.
    never = {"print", "signal.signal", "sys.exit", "sys._current_frames"}
    for path in modules("gossipdp"):
        assert not {ast.unparse(node.func) for node in calls(path)} & never, path


def test_modules_and_classes_open_with_what_they_are_for():
    assert not [path for path in modules("gossipdp") if parsed(path).body and not ast.get_docstring(parsed(path))]
    described = (ast.ClassDef, ast.FunctionDef)
    nodes = [node for path in FILES for node in ast.walk(parsed(path)) if isinstance(node, described)]
    assert not [node.name for node in nodes if (ast.get_docstring(node) or "").startswith(("Args:", "Returns:"))]


def importable():
    """Every module of the daemon's side, by its dotted name."""
    paths = [path for part in ("protocol", "algorithms", "codecs", "runtime") for path in modules(f"gossipdp/{part}")]
    paths += [path for name in ("daemon", "cli") if (path := ROOT / "peers" / f"{name}.py").exists()]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return [name.removesuffix(".__init__") for name in names]


def test_daemon_side_imports_no_torch_and_unpickles_nothing():
    """In a process of its own, with torch and unpickling made to raise."""
    program = (
        "import importlib, pickle, sys\n"
        "class Wall:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'torch': raise ImportError('torch on the daemon side')\n"
        "sys.meta_path.insert(0, Wall())\n"
        "def refuse(*a, **k): raise RuntimeError('unpickled')\n"
        "pickle.loads = pickle.load = refuse\n"
        f"for name in {importable()!r}: importlib.import_module(name)\n"
        "assert 'torch' not in sys.modules\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
