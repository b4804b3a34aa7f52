"""The inner optimizer's moments: reading, handing over, and restoring them."""
