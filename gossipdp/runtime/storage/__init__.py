"""On disk: checkpoints with their format, store and writer, and what would fill the memory."""
