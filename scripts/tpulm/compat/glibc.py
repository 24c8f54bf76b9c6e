"""How this process gets its memory, by the documented `mallopt` of glibc."""

import contextlib
import ctypes

# Of mallopt in glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
NEVER = -1


def keep_freed_memory() -> None:
    """Keep memory that is freed for what is allocated next, where the C library is glibc. Call it before threads start.

    In one arena, since the others of glibc cannot hold such blocks. The process gives nothing back until it ends.

    Why: XLA for CPUs allocates the temporaries of a program anew at each call. By default, blocks of more than 32 MiB
    come from the kernel each time, which sets them to zero page by page: a fifth of the time of a small step.
    Until: XLA keeps temporaries between calls.
    """
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, NEVER), (M_ARENA_MAX, 1)):
            mallopt(parameter, value)
