"""The code graph of a Python source tree: modules, nodes and edges of changed files."""
