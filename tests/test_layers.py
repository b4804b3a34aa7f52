"""Executes the import table of architecture.md section 3 over the files themselves; the daemon starts without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STDLIB = set(sys.stdlib_module_names)

THIRD_PARTY = {
    "gossipdp/protocol": {"msgpack", "msgspec"},
    "gossipdp/algorithms": {"numpy"},
    "gossipdp/codecs": {"numpy", "numba"},
    "gossipdp/runtime": {
        "msgpack",
        "msgspec",
        "numpy",
        "numba",
        "zmq",
        "prometheus_client",
        "nacl",
        "safetensors",
        "psutil",
    },
    "gossipdp/training": {"torch", "numpy", "msgspec"},
    "simulations": {"msgpack", "msgspec", "numpy", "numba", "matplotlib", "rich"},
}
"""What a package may import that is neither of the standard library nor of this project."""

INTERNAL = {
    "gossipdp/protocol": {"gossipdp.errors", "gossipdp.protocol"},
    "gossipdp/codecs": {"gossipdp.codecs"},
    "gossipdp/algorithms": {
        "gossipdp.algorithms",
        "gossipdp.codecs",
        "gossipdp.protocol.jobs",
        "gossipdp.protocol.wire.messages",
        "gossipdp.protocol.schema",
    },
    "gossipdp/runtime": {"gossipdp"},
    "gossipdp/training": {
        "gossipdp.training",
        "gossipdp.runtime.link",
        "gossipdp.protocol",
        "gossipdp.errors",
        "gossipdp.codecs",
        "gossipdp.algorithms",
    },
}
"""What of this project; a name allows what lies under it."""

ABOVE = {"gossipdp/runtime": {"gossipdp.training"}, "gossipdp": {"peers", "simulations", "tests"}}
"""What a package may not import of this project, whatever INTERNAL says."""

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
ONLY_IN = {
    "zmq": {"gossipdp/runtime/network/zmq_wire.py", "gossipdp/runtime/network/sockets.py"},
    "prometheus_client": {
        "gossipdp/runtime/observability/metrics.py",
        "gossipdp/runtime/observability/peer_labels.py",
        "gossipdp/runtime/observability/gpu.py",
    },
}
NEVER_ANYWHERE = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}


def modules(folder):
    return sorted(path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts)


def imports(path):
    """Dotted names imported anywhere in the file, with what is taken from them; TYPE_CHECKING blocks included."""
    package = ".".join(path.relative_to(ROOT).with_suffix("").parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
                base = f"{above}.{base}".rstrip(".")
            yield base, tuple(alias.name for alias in node.names)


def dotted(path):
    """Every import as full dotted names: `from a import b` is both a and a.b."""
    for base, names in imports(path):
        yield base
        yield from (f"{base}.{name}" for name in names)


def under(name, allowed):
    return any(name == root or name.startswith(root + ".") for root in allowed)


def ids(paths):
    return [str(path.relative_to(ROOT)) for path in paths]


PACKAGES = [(folder, path) for folder in THIRD_PARTY for path in modules(folder)]


@pytest.mark.parametrize(("folder", "path"), PACKAGES, ids=ids(path for _, path in PACKAGES))
def test_third_party_imports_are_those_of_the_table(folder, path):
    allowed = THIRD_PARTY[folder] | _extra(path)
    for name, _ in imports(path):
        top = name.partition(".")[0]
        assert top in STDLIB | {"gossipdp", "peers", "simulations"} | allowed, f"imports {name}"


def _extra(path):
    """The laboratory and the baselines train; benchmarks also measure what they compare with; adapters adapt."""
    relative = path.relative_to(ROOT)
    if relative.parts[:3] == ("simulations", "processes", "benchmarks"):
        return {"torch", "zmq", "nacl", "psutil"}
    if relative.parts[:3] == ("gossipdp", "training", "adapters"):
        return {"transformers", "accelerate", "lightning", "pytorch_lightning", "ray"}
    trains = relative.parts[:2] == ("simulations", "lab") or "namespaces" in relative.parts[:3]
    return {"torch"} if trains else set()


@pytest.mark.parametrize(
    ("folder", "path"),
    [pair for pair in PACKAGES if pair[0] in INTERNAL],
    ids=ids(path for folder, path in PACKAGES if folder in INTERNAL),
)
def test_internal_imports_are_those_of_the_table(folder, path):
    for base, names in imports(path):
        if not under(base, {"gossipdp", "peers", "simulations", "tests"}):
            continue
        for name in names or ("",):
            full = f"{base}.{name}".rstrip(".")
            assert under(base, INTERNAL[folder]) or under(full, INTERNAL[folder]), f"imports {full}"
            assert not under(full, ABOVE["gossipdp"] | ABOVE.get(folder, set())), f"imports {full}"


def test_training_knows_of_the_runtime_only_the_link():
    for path in modules("gossipdp/training"):
        for name in dotted(path):
            if under(name, {"gossipdp.runtime"}) and name != "gossipdp.runtime":
                assert under(name, {"gossipdp.runtime.link"}), f"{path.name} imports {name}"


def test_the_library_knows_nothing_of_what_is_built_on_it():
    for path in modules("gossipdp"):
        for name in dotted(path):
            assert not under(name, ABOVE["gossipdp"]), f"{path.name} imports {name}"


def test_the_runtime_does_not_know_the_training_side():
    for path in modules("gossipdp/runtime"):
        assert not any(under(name, {"gossipdp.training", "torch"}) for name in dotted(path)), path.name


@pytest.mark.parametrize("path", modules("gossipdp/protocol"), ids=ids(modules("gossipdp/protocol")))
def test_protocol_has_no_clock_thread_socket_vector_or_chance_of_its_own(path):
    for base, names in imports(path):
        assert base.partition(".")[0] not in PROTOCOL_NEVER | {"numpy", "torch", "zmq"}, f"imports {base}"
        if base == "random":
            # The type of an injected source, and nothing that would draw from the module's own.
            assert names == ("Random",), f"imports {names or 'random'}"
    tree = ast.parse(path.read_text())
    # Salted per process, so only __hash__ may use it, which orders nothing.
    salted = {id(node) for part in ast.walk(tree) if getattr(part, "name", "") == "__hash__" for node in ast.walk(part)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and id(node) not in salted:
            assert node.func.id not in {"Random", "open", "print", "input", "id", "hash"}, f"calls {node.func.id}"


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
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                assert name not in {"eval", "exec", "compile", "torch.load", "yaml.load"}, f"{path.name} calls {name}"


@pytest.mark.parametrize("folder", ["gossipdp"])
def test_library_prints_nothing_and_handles_no_signal(folder):
    for path in modules(folder):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in {"print", "signal.signal", "sys.exit"}, path.name


@pytest.mark.parametrize("path", modules("gossipdp"), ids=ids(modules("gossipdp")))
def test_modules_open_with_what_they_are_for(path):
    text = path.read_text()
    assert not text.strip() or ast.get_docstring(ast.parse(text)), "no docstring"


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
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
