"""The asset checks of a declaration."""
