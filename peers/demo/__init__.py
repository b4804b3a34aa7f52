"""`gossipdp demo`: several peers on this machine train a small GPT. One more replica trains alone, for comparison."""
