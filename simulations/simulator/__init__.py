"""Many real `Peer` objects in virtual time, with seeded faults and checked invariants."""
