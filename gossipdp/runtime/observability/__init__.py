"""What an operator reads: metrics, status, notices, and the HTTP endpoint that serves them."""
