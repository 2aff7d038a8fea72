"""The code graph of a tree of Python: modules, nodes and edges of what has changed."""
