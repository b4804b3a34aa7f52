"""Changes to `pairwise` that were tried and not adopted."""
