"""Run a program with the system's Python. It also finds the packages of a virtual environment.

    python3 with_packages.py .venv/lib/python3.11/site-packages train.py ...

So a program can import Debian's PyTorch, the NumPy with which PyTorch was built, and mrclab's packages.
"""

import runpy
import site
import sys

_, packages, *sys.argv = sys.argv
sys.path[0] = sys.argv[0].rpartition("/")[0] or "."
site.addsitedir(packages)
runpy.run_path(sys.argv[0], run_name="__main__")
