"""Keep freed memory in the process, so that big CPU tensors do not pay for fresh pages at every step.

glibc hands large blocks back to the kernel as soon as they are freed. A training step frees and asks again for the
same sizes, and every time the kernel zeroes the pages. Three `mallopt` settings (`man 3 mallopt`) turn that off.
The price is a somewhat larger resident set, and the setting is process-wide: call it from a program, not on import.
"""

import ctypes
import platform

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # as in <malloc.h>
_NEVER_TRIM = 2**31 - 1
_TOP_PAD_BYTES = 64 * 1024 * 1024


def tune_allocator() -> bool:
    """Ask glibc to keep freed blocks. Return whether it agreed; False where the C library is not glibc."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt  # from the C library that this process runs on
    # no block of its own mapping, which free() would unmap at once; the heap grows in large steps and never shrinks
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _NEVER_TRIM), (_M_TOP_PAD, _TOP_PAD_BYTES))
    return all(mallopt(name, value) == 1 for name, value in settings)
