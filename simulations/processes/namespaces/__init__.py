"""Real processes on an emulated network: hosts are network namespaces, cables are veth pairs. Needs Linux and root."""
