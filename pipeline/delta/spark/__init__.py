"""Spark with Delta: Java and jars, sessions (classic and Connect), the background server, and the meaning of errors.

Of a dataset it uses only the name, schema, features and location.
"""

__all__ = ["confs", "connect", "doors", "failures", "meaning", "server", "session"]
