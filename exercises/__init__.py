"""Run exercises of P4 courses: directories with a topology, P4 programs, and table entries of switches."""
