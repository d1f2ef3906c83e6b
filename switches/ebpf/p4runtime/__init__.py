"""The P4Runtime server of the target `ebpf`."""
