"""Training scripts, one a contestant. A real interpreter runs each on its host."""
