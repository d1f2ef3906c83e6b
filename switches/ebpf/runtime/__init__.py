"""The parts of a running switch: its program in the kernel, and the state of its tables and externs."""
