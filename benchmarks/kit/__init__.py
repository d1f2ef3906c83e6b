"""What the benchmarks share. None of these files measures anything by itself."""
