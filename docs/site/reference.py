"""Reference pages made from the code: each function returns the Markdown that `docs/conf.py` puts into a page."""
