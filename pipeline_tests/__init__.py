"""Tests, by tier: `unit` starts no JVM, `delta` has one file a verb and runs classic and Connect, the rest is whole."""
