"""Runs as data: playing them, keeping their answers, and settings of equal time."""
