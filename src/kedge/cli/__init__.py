"""The command line."""

from kedge.cli.main import main

__all__ = ["main"]
