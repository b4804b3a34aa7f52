"""Attacks on averaging, and which rules withstand them."""
