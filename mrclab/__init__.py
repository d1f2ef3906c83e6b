"""The command line: its commands use all other packages.

More than 16 modules: each command has its own.
"""

__version__ = "0.1.0"
