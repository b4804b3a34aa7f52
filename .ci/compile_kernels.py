"""Compiles all kernels into numba's cache, before the daemons of several tests compile them at the same time."""

from __future__ import annotations

from gossipdp.algorithms import kernels as ledger_kernels
from gossipdp.codecs import kernels

for module in (kernels, ledger_kernels):
    module.warm_up()
