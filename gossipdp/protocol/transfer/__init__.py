"""How a peer obtains the network's model: founding, joining, serving, and judging what was received.

`bootstrap` decides where the model comes from, `election` which checkpoint a network goes on from. `joiner` fetches it,
`source` gives it, `plausibility` judges it. `manifest`, `requests` and `refusals` are what these share. The optimizer's
moments follow by `moments_holder`, which gives them by `moments_source` and fetches them by `moments_fetcher`.
"""
