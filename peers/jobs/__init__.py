"""Example training jobs, one file each, to be read from top to bottom. A job knows one name of gossipdp: `attach`."""
