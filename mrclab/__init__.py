"""The commands of mrclab's command line. They use all other packages.

More than 16 modules: each command has its own module, so the usual limit for a folder does not apply here.
"""

__version__ = "0.1.0"
