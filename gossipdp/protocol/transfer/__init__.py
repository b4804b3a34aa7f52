"""How a peer obtains the network's model: founding, joining, serving, and judging what was received."""
