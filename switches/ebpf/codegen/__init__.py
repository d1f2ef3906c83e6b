"""The compiler: it translates a v1model program to LLVM IR, and LLVM compiles this IR to a BPF object."""
