"""Whose model this peer holds, and whether it fetches another."""
