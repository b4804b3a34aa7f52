"""Virtual networks, campaigns, the laboratory and benchmarks. Nothing here is needed to run a peer."""
