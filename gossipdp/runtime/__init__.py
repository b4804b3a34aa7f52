"""The only package of gossipdp that touches the world: sockets, keys, shared memory, disks, clocks and threads.

Nothing is imported here, so that a training process, which needs only `link`, pays for nothing else.
"""
