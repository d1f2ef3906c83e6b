"""The compiler: from the IR of a program to LLVM IR, and from that to a BPF object."""
