"""Memory that the C library keeps for itself, held small: it has an arena for each of many threads, and every visitor's
run of a script is a thread. Only glibc has these calls; elsewhere nothing is done."""

import ctypes
import platform

ARENAS, MOST = -8, 2  # M_ARENA_MAX of malloc.h, and how many
APART, LARGE = -3, 2**18  # M_MMAP_THRESHOLD, and from how many bytes on
_glibc = ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None


def few_arenas() -> None:
    """Has all threads share a few arenas; to be called before there are many threads.

    Photos and large tensors are kept apart and go back to the system when they are let go of. By itself the C library
    soon puts blocks of up to 32 MB among the small ones, whose holes then fill the memory.
    """
    if _glibc is not None:
        _glibc.mallopt(ARENAS, MOST)
        _glibc.mallopt(APART, LARGE)


def give_back() -> None:
    """Gives memory that is free back to the system."""
    if _glibc is not None:
        _glibc.malloc_trim(0)
