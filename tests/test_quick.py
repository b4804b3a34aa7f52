"""The script of make quick: which tests it runs for a changed file, and what it does when time runs out."""

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(ROOT / ".ci" / "quick.py"))


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("gossipdp/protocol/membership/view.py", "tests/protocol/membership"),
        ("gossipdp/codecs/kernels/codes.py", "tests/codecs"),
        ("peers/doctor/ways.py", "tests/peers/doctor"),
        ("simulations/simulator/network.py", "tests/simulations/simulator"),
        ("tests/training/conftest.py", "tests/training"),
    ],
)
def test_folder_that_is_mirrored_runs_whole(changed: str, tests: str) -> None:
    assert set(SCRIPT["tests_of"](changed)) >= {
        str(each.relative_to(ROOT)) for each in (ROOT / tests).glob("test_*.py")
    }


def test_tests_of_the_same_name_are_first() -> None:
    assert SCRIPT["tests_of"]("simulations/simulator/network.py")[0] == "tests/simulations/simulator/test_network.py"


@pytest.mark.parametrize(
    ("changed", "test"),
    [
        ("gossipdp/config_rules.py", "tests/test_config.py"),
        ("gossipdp/error_codes/__init__.py", "tests/test_error_codes.py"),
        ("peers/verdict.py", "tests/peers/test_verdict.py"),
        (".ci/mutants.py", "tests/test_mutants.py"),
        ("tests/training/gpt2_models.py", "tests/training/test_exported_models.py"),
        ("docs/config.md", "tests/test_docs.py"),
        ("tests/test_quick.py", "tests/test_quick.py"),
    ],
)
def test_file_without_a_mirrored_folder_has_tests_of_its_name_or_that_import_it(changed: str, test: str) -> None:
    found = SCRIPT["tests_of"](changed)
    assert test in found and all((ROOT / each).is_file() for each in found)


def test_removed_test_and_other_files_have_none() -> None:
    assert SCRIPT["tests_of"]("tests/test_that_is_gone.py") == SCRIPT["tests_of"]("constraints.txt") == []


def test_only_stopped_tests_that_had_not_failed_count_as_passed() -> None:
    assert SCRIPT["run"]([sys.executable, "-c", "import signal; signal.pause()"], 0.1) == (0, True)
    assert SCRIPT["FAILED"].search("1 failed, 2 passed in 1.00s") and not SCRIPT["FAILED"].search("3 passed in 1.00s")
    assert SCRIPT["run"]([sys.executable, "-c", "raise SystemExit(1)"], 600.0) == (1, False)


def test_modules_whose_tests_all_have_such_marks_pass() -> None:
    assert SCRIPT["run"]([sys.executable, "-c", "raise SystemExit(5)"], 600.0) == (0, False)


def test_marks_that_it_leaves_out_are_registered(pytestconfig: pytest.Config) -> None:
    """pytest refuses others."""
    registered = {line.split(":")[0] for line in pytestconfig.getini("markers")}
    assert set(SCRIPT["MARKS"].split()) - {"not", "and"} <= registered
