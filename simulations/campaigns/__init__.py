"""Searches for bugs: random networks, every single fault, hostile members, golden traces."""
