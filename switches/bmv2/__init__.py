"""The reference target: BMv2's simple_switch_grpc, a program of its own that is not part of this project."""
