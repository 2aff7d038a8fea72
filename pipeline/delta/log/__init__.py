"""The transaction log: commits, snapshots and checkpoints, read without Spark, and our mark in a commit."""
