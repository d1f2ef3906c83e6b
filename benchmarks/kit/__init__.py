"""The common parts of the benchmarks. No file here is a benchmark that can be run alone."""
