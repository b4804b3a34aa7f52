"""What happens after a partition: which side follows, how it catches up, and what an absence costs."""
