"""`python -m gossipdp` is the `gossipdp` command."""

import runpy

# By name: nothing in gossipdp imports peers, where the command line is.
runpy.run_module("peers.cli", run_name="__main__", alter_sys=True)
