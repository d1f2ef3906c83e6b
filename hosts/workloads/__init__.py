"""Workloads as graphs: operations of ranks and the order between them, read from traces or generated."""
