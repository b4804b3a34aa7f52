"""attach() switched off or refused, and how its errors end a script."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gossipdp
from gossipdp.errors import ConfigError
from gossipdp.runtime import link as links
from tests.runtime.link.training_process import pump
from tests.training.models import equal, small, train


def test_gossipdp_off_touches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSIPDP_OFF", "1")
    models = [small(), small()]
    optimizers = [torch.optim.AdamW(model.parameters()) for model in models]
    with gossipdp.attach(models[0], optimizers[0], home=tmp_path / "nowhere") as peer:
        for model, optimizer in zip(models, optimizers, strict=True):
            train(model, optimizer, 3)
        peer.report(loss=1.0)
        assert peer.alone and peer.stall_seconds == 0.0 and peer.lost_steps == 0
        assert peer.steps == peer.clock == 3, "a schedule that follows the clock goes on"
    assert not optimizers[0]._optimizer_step_post_hooks
    assert equal(*models) and list(tmp_path.iterdir()) == []


def test_several_ranks_without_a_process_group_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    model = small()
    with pytest.raises(ConfigError, match="GD-306") as caught:
        gossipdp.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), home=tmp_path)
    assert "init_process_group" in caught.value.do


UNCAUGHT = """
import sys, atexit, torch, gossipdp
def before(kind, error, trace): sys.stderr.write(f"before: {error}\\n")
sys.excepthook = before
atexit.register(print, "finalized")
model = torch.nn.Linear(2, 2)
for _ in range(2):
    try: gossipdp.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), home=sys.argv[1], timeout=0)
    except gossipdp.GossipdpError as error: last = error
raise last if sys.argv[2] == "ours" else ValueError("theirs")
"""


@pytest.mark.parametrize(("whose", "code"), [("ours", 4), ("theirs", 1)])
def test_error_of_gossipdp_that_nobody_catches_ends_the_script_with_its_text_and_code(
    tmp_path: Path, whose: str, code: int
) -> None:
    command = [sys.executable, "-c", UNCAUGHT, str(tmp_path / "none"), whose]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (code, "finalized\n")
    if whose == "theirs":
        assert run.stderr == "before: theirs\n"
    else:
        assert run.stderr.startswith("GD-105 ") and "\n  do:   " in run.stderr and "Traceback" not in run.stderr


def test_error_of_gossipdp_that_ends_a_script_is_told_the_daemon__a_scripts_own_code_is_not(tmp_path: Path) -> None:
    with contextlib.closing(links.LinkServer(tmp_path)) as server:
        own = "import sys, torch, gossipdp; model = torch.nn.Linear(2, 2); sgd = torch.optim.SGD(model.parameters())\n"
        begin = own + f"attach = lambda: gossipdp.attach(model, sgd, home={str(tmp_path)!r}, exclude='no such')\n"
        quiet = "sys.stderr = None\nattach()"
        for end in ("attach()", quiet, "try: attach()\nexcept gossipdp.GossipdpError: sys.exit(3)"):
            run = subprocess.run([sys.executable, "-c", begin + end], capture_output=True, text=True, check=False)
            assert run.returncode == 3, run.stderr
        first, second = pump(server)
    assert isinstance(first, links.Told) and (first.code, first.exit, first.alone) == ("GD-303", 3, False)
    assert first == second


@pytest.mark.parametrize(
    ("arguments", "code", "exit_code"), [("model, [sgd, sgd]", "GD-317", 3), ("'model', sgd", "GD-305", 6)]
)
def test_arguments_of_attach_that_are_refused_end_the_script_with_their_code_and_are_told_the_daemon(
    tmp_path: Path, arguments: str, code: str, exit_code: int
) -> None:
    own = "import torch, gossipdp; model = torch.nn.Linear(2, 2); sgd = torch.optim.SGD(model.parameters())\n"
    script = own + f"gossipdp.attach({arguments}, home={str(tmp_path)!r})"
    with contextlib.closing(links.LinkServer(tmp_path)) as server:
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert run.returncode == exit_code and "Traceback" not in run.stderr, run.stderr
        (told,) = pump(server)
    assert isinstance(told, links.Told) and (told.code, told.exit) == (code, exit_code)


@pytest.mark.parametrize("prompt", ["-i", "ps1"])
def test_error_of_gossipdp_leaves_an_interpreter_with_a_prompt_as_it_is(tmp_path: Path, prompt: str) -> None:
    begin = "import sys; sys.ps1 = '>>> '\n" if prompt == "ps1" else ""
    code = f"{begin}from gossipdp.training.attach import set_exit_codes; from gossipdp.errors import ConfigError\n"
    code += "set_exit_codes()\n"
    if prompt == "ps1":
        code += "sys.excepthook(ConfigError, ConfigError('GD-306', 'no'), None); print('goes on')"
        command, typed = [sys.executable, "-c", code], ""
    else:
        command, typed = [sys.executable, "-i", "-c", code + "raise ConfigError('GD-306', 'no')"], "print('goes on')\n"
    run = subprocess.run(command, input=typed, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "goes on\n")
    assert "GD-306 no\n" in run.stderr and "Traceback" not in run.stderr and "SystemExit" not in run.stderr


def test_importing_gossipdp_imports_no_torch() -> None:
    code = (
        "import sys, gossipdp; assert 'torch' not in sys.modules and 'attach' in dir(gossipdp);"
        "assert gossipdp.__all__ == sorted(gossipdp.__all__);"
        "print([hasattr(gossipdp, name) for name in gossipdp.__all__], 'torch' in sys.modules, hasattr(gossipdp, 'x'))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[True, True, True, True] True False\n"
