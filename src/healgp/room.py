"""Room in the address space, where the process has a limit of it (`ulimit -v`)."""

from __future__ import annotations

import numpy as np

#: Bytes that compiled code, and the stacks and buffers of threads, may need. LLVM ends the process
#: and OpenBLAS tries for ever when they get none, so they are asked for before.
RUNNING = 64 * 2**20
#: Bytes that compiling one function with all that it calls may need; 70 MB were seen.
COMPILING = 256 * 2**20


def left() -> float:
    """Bytes that this process may still map."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return np.inf
        with open("/proc/self/statm", encoding="ascii") as file:
            return limit - float(file.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError, ValueError):  # a system without such limits, or without /proc
        return np.inf


def ask(needed: float = RUNNING) -> None:
    """A MemoryError if there is too little."""
    found = left()
    if found < needed:
        what = "compiled code and threads" if needed == RUNNING else "compiling, once,"
        raise MemoryError(
            f"the process may map {max(0.0, found) / 2**20:.0f} MB more, and {what} may need "
            f"{needed / 2**20:.0f} MB: raise its limit (ulimit -v)"
        )
