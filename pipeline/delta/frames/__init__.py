"""Frames of Spark, pandas, polars, pyarrow and plain records: each has the declared columns or is refused.

Touches no table.
"""
