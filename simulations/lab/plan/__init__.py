"""The laboratory's clock for models of any size: every method plays its rounds, and no replica holds the model."""
