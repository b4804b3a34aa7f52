"""One-way compressors of the increments of `epidemic`, and error feedback around them."""
