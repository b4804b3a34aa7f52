"""The arithmetic of the `epidemic` strategy: a ledger in fixed point, compressed increments, robust rules."""
