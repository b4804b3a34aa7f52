"""Membership after SWIM with Lifeguard: probing, suspicion, gossip, anti-entropy, and what members report."""
