"""The switch program: P4_16 sources and what p4c made of them (build/)."""
