"""The switch program: P4_16 sources, and the output of the compiler p4c for them (build/)."""
