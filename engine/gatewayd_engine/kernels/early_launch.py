"""Early launches: a kernel begins while the one before it still ends.

CUDA calls this programmatic dependent launch (compute capability 9.0 and later): what a kernel
does before ``wait`` runs beside the end of the kernel before it, which saves a microsecond or two
of each short launch. Every kernel that is launched so has to ``wait`` before it reads what an
earlier kernel writes, or writes what one reads or writes, whichever that was: once the wait is
over, all of them have ended, because each has waited for its own predecessor. Weights and tables
may be read before. Kernels launched as usual need nothing: they begin when all before has ended.

Source: CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def wait(EARLY: tl.constexpr) -> None:
    """Wait for the kernel before, and let the one behind begin as soon as there is room.

    The latter only occupies what this kernel leaves free: all of its programs run by then.
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
