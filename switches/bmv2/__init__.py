"""The reference target: BMv2's simple_switch_grpc, a separate program that is not part of this project."""
