"""Kernels without a usable cache: a read-only installation, no home, or damaged files."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import numpy as np
from gossipdp.codecs import kernels
print(kernels.coefficients(np.uint32(1), np.uint32(2)))
"""


def test_kernels_compile_without_a_writable_cache() -> None:
    # numba may use only IPython's cache, which does not exist.
    variables = {**os.environ, "HOME": "/nonexistent", "NUMBA_CACHE_LOCATOR_CLASSES": "IPythonCacheLocator"}
    variables.pop("NUMBA_CACHE_DIR", None)
    said = [
        subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True)
        for environment in (variables, dict(os.environ))
    ]
    assert not said[0].stderr and said[0].stdout == said[1].stdout


@pytest.mark.parametrize(("kind", "content"), [("nbi", b""), ("nbi", b"x" * 90), ("nbc", b"")])
def test_damaged_cache_is_cleared_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, content: bytes
) -> None:
    source = tmp_path / "tiny.py"
    source.write_text("from gossipdp.codecs.compiled import kernel\n\n@kernel\ndef twice(x):\n    return 2 * x\n")
    assert [runpy.run_path(str(source))["twice"](21) for _ in range(2)] == [42, 42]
    assert not caplog.records
    (kept,) = tmp_path.rglob(f"*.{kind}")
    kept.write_bytes(content)
    assert runpy.run_path(str(source))["twice"](21) == 42
    (told,) = caplog.messages
    assert told.startswith(f"GD-603 compiled kernels in {kept.parent} are damaged")
    assert runpy.run_path(str(source))["twice"](21) == 42 and len(caplog.messages) == 1
