"""The arithmetic of averaging: the ledger with its compiled kernels, and pairwise exchanges on it."""
