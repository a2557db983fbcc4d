"""Processors: what code is generated for, and which of them this machine is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Processor:
    """A kind of processor.

    Attributes:
        kind: short name, as ``gatewayd doctor`` shows it.
        triple: of LLVM's target.
        cpu: LLVM's name of the model.
        features: LLVM's feature string.
        lanes: float32 numbers in a vector register.
        registers: number of vector registers.
    """

    kind: str
    triple: str
    cpu: str
    features: str
    lanes: int
    registers: int

    @property
    def row_tile(self) -> int:
        """Rows of a matrix product's register tile, which is two vectors wide.

        Two registers hold the weights, one a broadcast input; an input may come from memory.
        """
        return min((self.registers - 4) // 2, 12)


_LINUX, _APPLE = "unknown-linux-gnu", "apple-darwin"
AVX2 = Processor("avx2", f"x86_64-{_LINUX}", "x86-64-v3", "", 8, 16)
AVX512 = Processor("avx512", f"x86_64-{_LINUX}", "x86-64-v4", "-prefer-256-bit", 16, 32)
NEON = Processor("neon", f"aarch64-{_LINUX}", "generic", "+neon", 4, 32)
KINDS = (AVX2, AVX512, NEON)
"""Generic processors of each kind, for tests that only compile."""

_WANTED = {
    "avx512": ("avx512f", "avx512bw", "avx512dq", "avx512vl", "fma", "f16c"),
    "avx2": ("avx2", "fma", "f16c"),
}


def host() -> Processor | None:
    """Return this machine's processor; None if no kernels are written for it.

    Raises:
        ImportError: llvmlite is not installed.
    """
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple, cpu = llvm.get_process_triple(), llvm.get_host_cpu_name()
    if "linux" not in triple and "darwin" not in triple:
        return None  # threads wait by calls that other systems do not have
    has = llvm.get_host_cpu_features()
    if triple.startswith(("aarch64", "arm64")):
        return Processor("neon", triple, cpu, has.flatten(), NEON.lanes, NEON.registers)
    for kind in (AVX512, AVX2):
        if all(has.get(name) for name in _WANTED[kind.kind]):
            # Where a processor would rather use 256 bits, LLVM would split our vectors.
            flags = f"{has.flatten()},-prefer-256-bit"
            return Processor(kind.kind, triple, cpu, flags, kind.lanes, kind.registers)
    return None
