"""What hostile members do (campaign T12)."""
