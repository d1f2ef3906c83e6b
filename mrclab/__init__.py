"""The command line that ties the rooms together."""

__version__ = "0.1.0"
