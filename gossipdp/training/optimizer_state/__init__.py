"""The optimizers' state: Adam's moments, when they are sent, and the script's own checkpoint."""
