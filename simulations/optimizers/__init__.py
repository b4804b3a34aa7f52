"""Every optimizer of torch and of four libraries trains with two peers, is saved, restored and handed on to a joiner.

`catalogue` knows the optimizers, `problem` what they train, `trial` one optimizer's story, and `page` the table of all.
"""
