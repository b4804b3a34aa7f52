"""The `epidemic` strategy: every increment reaches every peer, and all apply it in the same order."""
