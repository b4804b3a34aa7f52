"""The laboratory: real models trained by any method on a simulated clock."""
