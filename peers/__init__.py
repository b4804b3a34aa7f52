"""What an operator runs: the `gossipdp` command, the daemon, the supervisor, the demo and example jobs.

Nothing is imported here, so that the command line starts at once.
"""
