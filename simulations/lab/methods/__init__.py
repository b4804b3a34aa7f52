"""The project's own method in the laboratory."""
