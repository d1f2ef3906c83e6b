"""Congestion control: the seam, a fixed window, a rate cap and NSCC."""
