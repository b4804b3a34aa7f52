"""Training while hosts die, pause, slow down and are replaced: the same events for every method, on one clock.

`hosts.py` says what each host can do at every moment. `lab.py` plays a method for a given time and counts idle time.
`gossip.py`, `quorum.py`, `elastic.py` and `decoupled.py` have the methods, `runs.py` their names. This package knows no
suite.
"""
