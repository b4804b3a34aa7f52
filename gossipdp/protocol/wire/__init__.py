"""Messages that cross the network: their fields, their table of kinds, their encoding."""
