"""The suites of the laboratory: one question per file, as arms and as what to read from their outcomes.

`runs` plays and keeps the runs, and `pages` writes the pages.
"""
