"""`gossipdp report`: one self-contained HTML file about a run, from the homes of its peers."""
