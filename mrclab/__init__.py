"""The commands of mrclab's command line. They use all other packages.

Each command has a separate module, so this folder may have more than 16 modules, the usual limit.
"""

__version__ = "0.1.0"
