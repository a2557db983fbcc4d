"""Programmatic dependent launch: a kernel starts while the previous one is still finishing.

Available from compute capability 9.0 on. Work that a kernel does before ``wait`` overlaps with the
end of the previous kernel, which saves a microsecond or two per short launch. Every kernel that is
launched this way has to ``wait`` before it reads what any earlier kernel writes, or writes what any
earlier kernel reads or writes: once the wait is over, all of them have ended, because each has
waited for its own predecessor. Weights and tables may be read before. Kernels launched normally
need nothing: they start when all previous kernels have ended.

Source: CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def wait(EARLY: tl.constexpr) -> None:
    """Wait for the previous kernel, and let the next one start once resources are free.

    The next kernel only takes resources that this one leaves free: by then all of its programs
    are running.
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
