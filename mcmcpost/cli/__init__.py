"""The command line, thin over the public functions, with all that only it uses."""

from mcmcpost.cli.app import main

__all__ = ["main"]
