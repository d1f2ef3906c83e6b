"""The software target: p4c's BMv2 JSON compiled to BPF and run by the kernel at tc ingress of each port."""
