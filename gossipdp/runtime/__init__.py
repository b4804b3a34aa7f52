"""The only files of gossipdp that touch the world: sockets, keys, shared memory, disks, clocks and threads.

Nothing is imported here, so that a training process which needs `link` alone pays for nothing else.
"""
