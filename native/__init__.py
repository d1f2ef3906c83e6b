"""C libraries through which programs use the NIC service: the functions of libibverbs."""
