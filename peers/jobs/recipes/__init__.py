"""Typical training scripts, each twice: NAME.py, and NAME_gossip.py with gossipdp.

    diff peers/jobs/recipes/ddp.py peers/jobs/recipes/ddp_gossip.py
    gossipdp up --network ddp -- torchrun --standalone --nproc-per-node 2 peers/jobs/recipes/ddp_gossip.py

The two differ in two lines, and in up to five where a schedule or an average follows the network's clock. Each reads
from top to bottom; `text` has the data and the arguments.
"""
