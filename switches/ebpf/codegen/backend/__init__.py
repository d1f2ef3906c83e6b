"""LLVM: writing its IR, compiling it to BPF, and reading the object file."""
