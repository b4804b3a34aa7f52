"""Rounds of a training process: when they begin and end, how long they are, and what a peer without one does."""
