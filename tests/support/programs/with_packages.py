"""Run a program with a Python of its own, and behind its packages those of a virtual environment.

    python3 with_packages.py .venv/lib/python3.11/site-packages train.py ...

So a program has Debian's PyTorch with the NumPy that it was built with, and mrclab's packages all the same.
"""

import runpy
import site
import sys

_, packages, *sys.argv = sys.argv
sys.path[0] = sys.argv[0].rpartition("/")[0] or "."
site.addsitedir(packages)
runpy.run_path(sys.argv[0], run_name="__main__")
