"""Attacks on averaging, and which rule withstands which."""
