"""The arithmetic of averaging: the ledger with its compiled kernels, and one module or package for each strategy."""
