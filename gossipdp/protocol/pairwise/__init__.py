"""Pairwise averaging: two peers exchange compressed differences and move towards each other.

Which exchanges are made: `timetable` says how many a round has. `schedule` computes partners that all members agree on,
where members follow a schedule. `matching` finds a random partner. `offers` makes, accepts and refuses offers.
`terms` has what this peer offers: codec, window, pull. `partner_history` remembers earlier exchanges.

One exchange: `exchange` has what its two sides share, `initiator` and `responder` are the sides, and `averaging` runs
the exchanges of a peer. `timing` learns how long a chunk and an answer take, `link_load` how much the link carries.

`config` has the settings.
"""
