"""The asset checks of a declared dataset."""
