"""Suites as pages with tables and pictures, and the command that writes them."""
