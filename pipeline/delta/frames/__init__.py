"""Frames of Spark, pandas, polars and pyarrow, and plain records: each gets the declared columns or is refused.

This package reads and writes no table.
"""

__all__ = ["arrow", "arrow_types", "convert", "fit", "records", "source_files", "staging"]
