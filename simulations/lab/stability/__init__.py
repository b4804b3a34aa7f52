"""Does the outer loop stay stable, whatever the script does? Each run is played twice: with exchanges and without.

`problems.py` and `optimizers.py` have what hosts train, `landing.py` the product's `pairwise` with chosen landing
times, and `cells.py` one run and its lone twin. Names here are not the registry's, so other kept answers stay valid.
"""
