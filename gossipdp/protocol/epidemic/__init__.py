"""The `epidemic` strategy: every increment reaches every peer, and peers with equal sets hold the same bits."""
