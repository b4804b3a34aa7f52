"""Checkpoints on disk: format, store, the thread that writes them, and pinned ones."""
