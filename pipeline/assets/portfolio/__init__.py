"""Positions by a stream of updates, market prices, and the breaks against a broker's snapshot."""
