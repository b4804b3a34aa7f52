"""The commands of `gossipdp`, by subject. Each imports what is heavy only when it runs."""
