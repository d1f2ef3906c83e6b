"""The command line: its commands use all other packages.

More than 16 modules: one for each command.
"""

__version__ = "0.1.0"
