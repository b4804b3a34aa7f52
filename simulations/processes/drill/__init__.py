"""A fire drill: faults drawn by chance, and what the tools of an operator say about them."""
