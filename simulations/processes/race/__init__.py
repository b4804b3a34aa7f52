"""The race: gossipdp and three rivals train one model as real processes on emulated slow links. Needs Linux and root."""
