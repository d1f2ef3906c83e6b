"""What carries a workload out: agents (spray, mesh) and rank processes, behind one protocol."""
