"""What runs without being asked: sensors, maintenance jobs, and the pools of tables."""
