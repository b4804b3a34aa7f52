"""Failure detection: Lifeguard against plain SWIM, with members starved of CPU (campaign T6)."""
