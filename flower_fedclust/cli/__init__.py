"""The command ``fedclust``."""

from flower_fedclust.cli.commands import main

__all__ = ["main"]
