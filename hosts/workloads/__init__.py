"""Workloads as graphs: operations of ranks that wait for one another, read from traces or generated."""
