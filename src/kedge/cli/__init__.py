"""The command line."""

from kedge.cli.program import main

__all__ = ["main"]
