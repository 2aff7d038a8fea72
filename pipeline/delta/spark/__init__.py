"""A Spark that can do Delta: Java and jars, sessions (classic and Connect), the warm server, what Spark's errors mean.

Knows of a dataset only what a session makes of its rows.
"""
