"""Real processes: daemons on loopback, network namespaces, benchmarks."""
