"""The NIC service of a host, through which programs in C use the NIC. `native/` has the programs' side."""
