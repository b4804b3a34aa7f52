"""The mark `needs`: what is missing is named, and a test calls no program that it does not name. `make system` too."""

import re
import subprocess
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[1]
NAMED = """
import subprocess, pytest

@pytest.mark.needs("tc")
def test_named():
    subprocess.run(["tc", "-Version"], check=True)

@pytest.mark.needs("namespaces")
def test_of_an_ability():
    pass
"""
NOT_NAMED = """
import subprocess, pytest

def test_of_the_table():
    with pytest.raises(OSError):
        subprocess.run(["iptables", "-L"])

@pytest.mark.needs("ip")
def test_in_a_namespace():
    subprocess.run(["ip", "netns", "exec", "one", "iptables", "-L"])

def test_of_no_table():
    subprocess.run(["figlet"])

def test_of_a_library():
    code = compile("import subprocess; subprocess.run(['true'])", "/usr/lib/python3/its.py", "exec")
    exec(code)

def test_on_every_system():
    subprocess.run(["sh", "-c", ":"], check=True)
"""


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, pytester: pytest.Pytester) -> None:
    """Tests of another folder have the mark."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest('pytest_plugins = ["tests.needs"]')


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH, without the programs of the table."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_missing_programs_are_named(pytester: pytest.Pytester, bare: Path) -> None:
    pytester.makepyfile(NAMED)
    ran = pytester.runpytest_subprocess("-rs", "-p", "no:cacheprovider")
    ran.assert_outcomes(skipped=2)
    ran.stdout.fnmatch_lines(
        [
            "SKIPPED * not on PATH: tc (Debian's package iproute2)",
            "SKIPPED * no namespaces here: not on PATH: ip (*), tc (*)*",
        ]
    )


def test_option_selects_by_program(pytester: pytest.Pytester, bare: Path) -> None:
    pytester.makepyfile(NAMED)
    pytester.runpytest_subprocess("--needs", "ip").assert_outcomes(skipped=1, deselected=1)
    pytester.runpytest_subprocess("--needs", "iptables").assert_outcomes(deselected=2)


def test_a_call_that_no_mark_names_fails__there_is_the_program_or_not(pytester: pytest.Pytester, bare: Path) -> None:
    for name in ("ip", "true"):
        (bare / name).symlink_to("/bin/true")
    pytester.makepyfile(NOT_NAMED)
    ran = pytester.runpytest_subprocess()
    ran.assert_outcomes(passed=2, failed=3)
    assert re.findall(r"^E +Failed: calls `(\w+)`", ran.stdout.str(), re.M) == ["iptables", "iptables", "figlet"]


def test_a_need_that_no_table_has_is_an_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile('import pytest\n@pytest.mark.needs("figlet")\ndef test_one(): pass')
    ran = pytester.runpytest_subprocess()
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    ran.stderr.fnmatch_lines(["ERROR: *test_one needs what no table has: figlet"])


@pytest.mark.parametrize(("argument", "place"), [("", "apt"), ("long", "apt-long")])
def test_system_asks_for_the_packages_of_the_table(bare: Path, argument: str, place: str) -> None:
    """As another user than root, who installs nothing. Programs in /sbin are found beside PATH."""
    for name in ("dirname", "tr"):
        (bare / name).symlink_to(f"/usr/bin/{name}")
    (bare / "id").write_text("#!/bin/sh\necho 1000\n")
    (bare / "id").chmod(0o755)
    ran = subprocess.run(["sh", ".ci/packages", argument], cwd=ROOT, capture_output=True, text=True, check=True)
    asked = ran.stdout.rpartition("apt-get install ")[2].split()
    wanted = set()
    for line in (ROOT / ".ci" / "programs").read_text().splitlines():
        names, where, package = line.split()[:3]
        beside = any(Path(folder, name).exists() for folder in ("/usr/sbin", "/sbin") for name in names.split(","))
        wanted |= {package} if where in ("apt", place) and not beside else set()
    assert sorted(asked) == sorted(wanted) and ran.stderr == ""
