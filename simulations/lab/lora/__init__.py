"""LoRA in the laboratory: adapters of a transformer that was trained on other text, and runs that read their products.

`problem.py` holds the model, its data and its factors, `runs.py` plays it.
"""
