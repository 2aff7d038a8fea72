"""Spark with Delta: Java and jars, sessions (classic and Connect), and the meaning of errors.

Of a dataset it uses only the name, schema, features and location.
"""

__all__ = [
    "cluster",
    "confs",
    "connect",
    "doors",
    "failures",
    "jars",
    "meaning",
    "own_classes",
    "server_record",
    "session",
]
