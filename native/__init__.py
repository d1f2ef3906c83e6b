"""C libraries with the functions of libibverbs, through which programs use the NIC service."""
