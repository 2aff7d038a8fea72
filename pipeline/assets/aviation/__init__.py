"""Flights of the landing folder, the airports and planes, and the traffic of each airport."""
