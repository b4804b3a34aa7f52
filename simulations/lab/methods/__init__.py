"""The project's own strategies in the laboratory."""
