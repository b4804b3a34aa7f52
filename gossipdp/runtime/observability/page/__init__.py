"""The status page that the daemon serves beside its metrics.

`site` answers requests, and `published` carries answers from the I/O thread. The folder `files` has
what a browser loads.
"""
