"""The worker process compiles LLVM IR text to a BPF object file. Other functions here read that file.

LLVM runs in a separate process because some errors in its back end terminate the process. When the process
ends, the memory of the LLVM library is released. The object file is a 64-bit little-endian ELF file (elf(5)).
A BPF program has 512 bytes of stack (Documentation/bpf/verifier.rst), and `beyond` checks this limit.
"""

from __future__ import annotations

import struct
import subprocess
import sys

from mrclab.linux.errors import SwitchError


def section(data: bytes, name: str) -> bytes:
    """Return the content of section `name`. Raise SwitchError if it is missing or the ELF file is invalid."""
    try:
        if data[:6] != b"\x7fELF\x02\x01":
            raise SwitchError("not a 64-bit little-endian ELF file")
        (table,) = struct.unpack_from("<Q", data, 40)
        size, count, names = struct.unpack_from("<HHH", data, 58)
        headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
        strings = headers[names][4]
        for name_at, _, _, _, offset, length in headers:
            end = data.index(b"\0", strings + name_at)
            if data[strings + name_at : end] == name.encode():
                return data[offset : offset + length]
    except (struct.error, IndexError, ValueError) as exc:
        raise SwitchError(f"damaged ELF file: {exc}") from exc
    raise SwitchError(f"no section {name} in the object file")


LIMIT_BYTES = 512
_FRAME = 10  # register r10 points to the end of the stack
_ADDRESS = {1: "source", 2: "destination", 3: "destination"}  # LDX, ST, STX: the register with the address


def beyond(code: bytes) -> list[int]:
    """Return the indexes of the instructions that access more than 512 bytes of stack."""
    found = []
    for at in range(0, len(code), 8):
        opcode, registers, offset = struct.unpack_from("<BBh", code, at)
        side = _ADDRESS.get(opcode & 7)
        base = registers >> 4 if side == "source" else registers & 15
        if side is not None and base == _FRAME and offset < -LIMIT_BYTES:
            found.append(at // 8)
    return found


CPU = "v3"
# Without this feature, LLVM reads unaligned fields of a map value byte by byte.
FEATURES = "+allows-misaligned-mem-access"
# The kernel's limit is 512 bytes. With this limit LLVM would fail without naming the part of the program that
# uses too much stack. So LLVM gets a larger limit, and `beyond` finds the part.
STACK_BYTES = 32768
TIMEOUT_S = 120


_TOO_FAR = "Branch target out of insn range"


class CompilerError(SwitchError):
    """LLVM cannot compile the program. The text contains LLVM's error message."""


class TooLargeError(CompilerError):
    """A jump in the program is longer than 32,767 instructions, the limit of BPF's jump instruction."""


def compile_ir(text: str) -> bytes:
    """Compile LLVM IR to a BPF object file in a subprocess. Raise CompilerError or TooLargeError."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "mrclab.switches.ebpf.codegen.backend.worker"],
            input=text.encode(),
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise CompilerError(f"LLVM did not finish within {TIMEOUT_S} s") from exc
    if done.returncode != 0 or not done.stdout:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        reason = next((line for line in lines if "error" in line.lower()), lines[-1])
        kind = TooLargeError if _TOO_FAR in reason else CompilerError
        raise kind(f"LLVM could not compile the program (exit {done.returncode}): {reason}")
    return done.stdout


def emit(text: str) -> bytes:
    """Compile LLVM IR in this process. An error in LLVM may terminate the process."""
    import llvmlite.binding as llvm

    llvm.set_option("", f"-bpf-stack-size={STACK_BYTES}")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(text)
    module.verify()
    machine = llvm.Target.from_triple("bpfel").create_target_machine(
        cpu=CPU, features=FEATURES, opt=2, reloc="static"
    )
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    result: bytes = machine.emit_object(module)
    return result


if __name__ == "__main__":
    sys.stdout.buffer.write(emit(sys.stdin.buffer.read().decode()))
