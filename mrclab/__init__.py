"""The commands of mrclab's command line. They use all other packages.

More than 16 modules: each command has a separate module.
"""

__version__ = "0.1.0"
