"""The arithmetic of averaging: the ledger of sums, and one module or package a strategy. Pure numpy."""
