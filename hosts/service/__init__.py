"""The NIC service of a host: programs in C reach the NIC through it (`native/` is their side)."""
