"""The target `ebpf` compiles BMv2 JSON to BPF, which the kernel runs at the tc ingress of each port."""
