"""What sends on the live page: agents, rank processes, and the kernel's own stack."""
