"""Leases of the data: which peer trains which block of samples."""
