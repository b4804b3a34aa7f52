"""One-way compressors of the `epidemic` strategy, with error feedback."""
