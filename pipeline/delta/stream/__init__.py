"""Frames of Structured Streaming, written batch by batch, each batch once."""
