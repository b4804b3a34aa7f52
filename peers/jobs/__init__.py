"""Example training jobs, one per file. Each reads from top to bottom, and uses one name of gossipdp: `attach`."""
