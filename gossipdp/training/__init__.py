"""The code of the training process, and the only package that imports torch. Users call `gossipdp.attach`."""
