"""A Spark that can do Delta: Java and jars, sessions (classic and Connect), the warm server, what Spark's errors mean.

Knows a dataset only where the meaning of its rows depends on a session.
"""
