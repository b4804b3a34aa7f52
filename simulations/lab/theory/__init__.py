"""How fast pairwise averaging agrees: closed forms and measurements."""
