"""The drivers of a workload: agents (spray, mesh) and rank processes, behind one protocol."""
