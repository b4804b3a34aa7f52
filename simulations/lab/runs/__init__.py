"""Runs as data: playing them, keeping their answers, and equal-time clocks."""
