"""Run exercises of P4 courses: directories with a topology, and each switch's program and table entries."""
