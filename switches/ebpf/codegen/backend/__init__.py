"""The use of LLVM: write its IR, compile the IR to BPF, and read the object file."""
