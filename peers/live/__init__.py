"""The live line of `gossipdp up` and `gossipdp join`: one row of the terminal, below all other output.

`figures` says what is in it, `row` draws it, and `process` is the process that asks the daemon for it.
"""
