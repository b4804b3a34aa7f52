"""What runs inside the training process: the only package that imports torch. `gossipdp.attach` is its front door."""
