"""Runs: their configuration, their directory, and `simulate`."""
