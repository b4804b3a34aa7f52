"""Kernels where nothing that is compiled can be kept: a read-only installation, and a user without a home."""

from __future__ import annotations

import os
import subprocess
import sys

CODE = """
import numpy as np
from gossipdp.codecs import kernels, kernels_sparse
print(kernels._hash(np.uint32(1), np.uint32(2)), kernels_sparse._smallest_chosen.__name__)
"""


def test_kernels_are_compiled_where_they_cannot_be_kept() -> None:
    # The one place that numba may look at is IPython's, and there is none.
    variables = {**os.environ, "HOME": "/nonexistent", "NUMBA_CACHE_LOCATOR_CLASSES": "IPythonCacheLocator"}
    variables.pop("NUMBA_CACHE_DIR", None)
    said = [
        subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True)
        for environment in (variables, dict(os.environ))
    ]
    assert not said[0].stderr and said[0].stdout == said[1].stdout
