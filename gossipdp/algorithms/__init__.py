"""The arithmetic of averaging, in pure numpy: the ledger, and one module or package for each strategy."""
