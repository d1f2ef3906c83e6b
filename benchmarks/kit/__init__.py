"""The common parts of the benchmarks. These files measure nothing by themselves."""
