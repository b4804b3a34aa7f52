"""A model that is no toy: the laboratory's methods on one GPU, all hosts in one process.

`text.py` gathers and encodes the text, `model.py` has the GPT. `lab.py` keeps replicas in the host's memory, trains
them on a device, and saves a run under way. `arms.py` says what is played, `page.py` writes the page.
"""
