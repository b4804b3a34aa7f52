"""The race: gossipdp and its rivals train one model, as real processes on emulated slow links. It needs root."""
