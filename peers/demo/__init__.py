"""`gossipdp demo`: several peers on this machine train a small GPT beside a replica that trains alone."""
