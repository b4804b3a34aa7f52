"""Real processes on an emulated network: hosts are network namespaces, their cables veth pairs. Linux and root only."""
