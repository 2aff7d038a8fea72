"""Positions from a stream of updates, market prices, and the differences from a broker's snapshot."""
