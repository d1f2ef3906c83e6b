"""The commands of mrclab's command line, which use all other packages.

More than 16 modules: each command has its own module.
"""

__version__ = "0.1.0"
