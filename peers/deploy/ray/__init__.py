"""Peers on a Ray cluster."""
