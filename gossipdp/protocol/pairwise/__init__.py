"""The `pairwise` strategy: two peers exchange compressed differences and move towards each other."""
