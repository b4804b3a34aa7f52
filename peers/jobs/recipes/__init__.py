"""Training scripts as people write them, each twice: NAME.py, and NAME_gossip.py, which is a peer.

    diff peers/jobs/recipes/ddp.py peers/jobs/recipes/ddp_gossip.py
    gossipdp up -- torchrun --standalone --nproc-per-node 2 peers/jobs/recipes/ddp_gossip.py

Two lines at most tell them apart. Each reads from top to bottom; what is not the point is in `text`.
"""
