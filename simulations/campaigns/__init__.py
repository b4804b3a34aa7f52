"""Searches for faults: many seeds, every single fault, hostile members, golden traces."""
