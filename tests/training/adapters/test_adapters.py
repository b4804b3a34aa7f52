"""What all adapters have in common. Whole scripts are in `test_recipes`."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import gossipdp
from gossipdp.errors import ConfigError
from gossipdp.training import adapters
from tests.training.adapters.frameworks import FRAMEWORKS, framework

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the frameworks are their own affair


def test_gossipdp_imports_none_of_them() -> None:
    code = (
        "import sys, gossipdp, gossipdp.training.attach, gossipdp.training.adapters\n"
        "gossipdp.attach\n"
        f"print(sorted({{'pytorch_lightning', *{sorted(FRAMEWORKS.values())!r}}} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_a_framework_that_is_not_there_is_gd_307(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in (FRAMEWORKS[name], "pytorch_lightning"):
        for loaded in [key for key in sys.modules if key.partition(".")[0] == module]:
            monkeypatch.delitem(sys.modules, loaded)
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"gossipdp.training.adapters.{name}", raising=False)
    with pytest.raises(ConfigError, match="GD-307") as caught:
        importlib.import_module(f"gossipdp.training.adapters.{name}")
    assert caught.value.cause == f"{FRAMEWORKS[name]} cannot be imported"
    assert FRAMEWORKS[name] in caught.value.seen or name == "lightning"
    assert caught.value.do == f"pip install 'gossipdp[{name}]'"


@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_an_adapter_is_one_short_file_with_one_name(name: str) -> None:
    assert Path(adapters.__file__).with_name(f"{name}.py").read_text().count("\n") < 160
    assert framework(name).__all__ == ["attach" if name in ("accelerate", "ray") else "GossipCallback"]


@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_an_adapter_takes_every_option_of_attach(name: str) -> None:
    given = inspect.signature(getattr(framework(name), framework(name).__all__[0])).parameters
    by_itself = set() if name in ("accelerate", "ray") else {"model", "optimizer", "samples_per_step"}
    expected = inspect.signature(gossipdp.attach).parameters
    assert set(expected) - by_itself <= set(given)
    assert all(
        given[each].default == expected[each].default for each in {"every", "timeout", "compare_frozen", "exclude"}
    )


def test_steps_of_several_optimizers_x_for_one_of_the_last_x_number() -> None:
    def measured(batches: list[tuple[int, int]]) -> list[float]:
        steps = counted = 0
        each, found = adapters.StepsEach(), []
        for more, of_last in batches:
            steps, counted = steps + more, counted + of_last
            found.append(each.look(steps, counted))
        return found

    assert measured([(2, 1)] * 3) == [1.0, 2.0, 2.0]
    assert measured([(2, 0)] * 9 + [(2, 1)] * 2)[-1] == 2.0, "a scaler skips the first steps"
    critic, generator = (1, 0), (2, 1)
    assert measured([*[critic] * 4, generator] * 3)[4::5] == [1.0, 6.0, 6.0]
