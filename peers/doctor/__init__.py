"""`gossipdp doctor`: examines this host and its way to the network, and changes nothing."""
