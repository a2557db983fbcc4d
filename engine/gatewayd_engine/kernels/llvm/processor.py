"""Processors: what code is generated for, and which of them this machine is."""

from __future__ import annotations

from dataclasses import dataclass, replace


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
        dots: instructions that add products of small integers: ``madd`` (pairs, in 16 bits), or
            ``vnni`` or ``sdot`` (four bytes each); empty for none.
    """

    kind: str
    triple: str
    cpu: str
    features: str
    lanes: int
    registers: int
    dots: str

    @property
    def row_tile(self) -> int:
        """Rows of a matrix product's register tile, which is two vectors wide.

        Two registers hold the weights, one a broadcast input; an input may come from memory.
        """
        return min((self.registers - 4) // 2, 12)

    def panels_at_once(self, rows: int) -> int:
        """Return the panels of a tile of few rows, for eight independent chains of additions."""
        return max(1, min(4, self.row_tile // rows))


_LINUX, _APPLE = "unknown-linux-gnu", "apple-darwin"
AVX2 = Processor("avx2", f"x86_64-{_LINUX}", "x86-64-v3", "", 8, 16, "madd")
AVX512 = Processor("avx512", f"x86_64-{_LINUX}", "x86-64-v4", "-prefer-256-bit", 16, 32, "madd")
VNNI = replace(AVX512, kind="avx512-vnni", features="+avx512vnni,-prefer-256-bit", dots="vnni")
NEON = Processor("neon", f"aarch64-{_LINUX}", "generic", "+neon,+dotprod", 4, 32, "sdot")
KINDS = (AVX2, AVX512, VNNI, NEON)
"""Generic processors of each kind, for tests that only compile."""

_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "fma", "f16c")
_WANTED = {
    "avx512-vnni": (*_AVX512, "avx512vnni"),
    "avx512": _AVX512,
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
        dots = NEON.dots if has.get("dotprod") else ""
        return replace(NEON, triple=triple, cpu=cpu, features=has.flatten(), dots=dots)
    for kind in (VNNI, AVX512, AVX2):
        if all(has.get(name) for name in _WANTED[kind.kind]):
            # Where a processor would rather use 256 bits, LLVM would split our vectors.
            flags = f"{has.flatten()},-prefer-256-bit"
            return replace(kind, triple=triple, cpu=cpu, features=flags)
    return None
