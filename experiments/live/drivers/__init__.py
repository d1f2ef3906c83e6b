"""Drivers of workloads: agents (spray, mesh), rank processes and programs, with one interface."""
