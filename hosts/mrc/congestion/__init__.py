"""Congestion control: the seam, a fixed window, a rate cap and NSCC."""

from mrclab.hosts.compiled import prefer

prefer(__path__, __name__)  # Before any module of this package is imported.
