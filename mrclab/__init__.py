"""The commands of mrclab's command line. They use all other packages.

More than 16 modules: the usual limit of a folder is 16, but here each command has its own module.
"""

__version__ = "0.1.0"
