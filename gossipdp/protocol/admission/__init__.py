"""Who may be a member: what the operators of the network and of this host have decided, and how decisions spread."""
