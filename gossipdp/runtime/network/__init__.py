"""Sockets, links between peers, admission, addresses and identity."""
