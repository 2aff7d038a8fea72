"""Migration of a folder of files into a table, and the declaration of a table that exists already.

A plan is made first, without Spark. `copy` writes the rows through `pipeline.delta.write`; `in-place` lets Delta
convert the folder. Both are compared with the files before they count as done.
"""

__all__ = ["adopt", "compare", "convert", "copy", "files", "plan", "report", "taken"]
