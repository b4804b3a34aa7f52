"""`gossipdp top`: a live view of the network on a terminal.

It uses rich, which the command line needs anyway, and not textual: one screen with a dozen keys needs no widgets, and
starts at once over ssh.
"""
