"""Automation: sensors, maintenance jobs, and the pools of tables."""
