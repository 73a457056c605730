"""Guard of memory maps: a file that is cut off under a map costs the map, not the process.

A write behind the end of a mapped file raises SIGBUS, which ends the process, and with it a
training of days because somebody emptied a file. No look at the file beforehand helps: it can be
cut off between the look and the write. The handler here puts anonymous memory in the place of the
map, so that the write succeeds, and reports the map as lost.

The signal arrives inside of `mmap.write`, which holds the interpreter's lock: Python runs in the
handler as it does in any callback from C. A fault outside of the maps that are guarded is left to
whom the signal belonged to before.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
import sys
import weakref
from collections.abc import Callable
from typing import Any

_ADDRESS_AT = 16
"""Offset of `si_addr` in `siginfo_t`, on every 64-bit Linux."""

_SA_SIGINFO = 4
_MAP_FIXED, _MAP_ANONYMOUS = 0x10, 0x20
_IS_KNOWN = sys.platform == "linux" and sys.maxsize > 1 << 32

_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_guarded: dict[int, tuple[weakref.ref[mmap.mmap], weakref.WeakMethod[Callable[[], object]]]] = {}
"""Maps by their first address, and whom to tell. Neither is kept alive by being here."""

_kept: list[Any] = []  # what the kernel points to must outlive everything else


class _Action(ctypes.Structure):
    """`struct sigaction` of glibc and musl."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def guard(map: mmap.mmap, on_lost: Callable[[], object]) -> None:
    """Call `on_lost` when the file under a memory map is cut off, within a write that succeeds."""
    if not _IS_KNOWN:
        return
    if not _kept:
        _install()
    first = ctypes.addressof(ctypes.c_char.from_buffer(map))
    _guarded[first] = (
        weakref.ref(map, lambda _: _guarded.pop(first, None)),
        weakref.WeakMethod(on_lost),
    )


def _install() -> None:
    # Calls through PyDLL keep the interpreter's lock, which the thread that faults has.
    library = ctypes.PyDLL(None)
    replace = library.mmap
    replace.restype = ctypes.c_void_p
    replace.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    before = _Action()
    action = _Action()

    def handle(number: int, info: int, context: int) -> None:
        address = ctypes.c_uint64.from_address(info + _ADDRESS_AT).value
        page = address - address % mmap.PAGESIZE
        for first, (its_map, its_method) in list(_guarded.items()):
            map = its_map()
            on_lost = its_method()
            if map is None or map.closed or not first <= address < first + len(map):
                continue
            flags = mmap.MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_FIXED
            if (
                replace(
                    page, first + len(map) - page, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0
                )
                == page
            ):
                if on_lost is not None:
                    on_lost()
                return
        # The fault comes again, and goes to the handler before.
        library.sigaction(signal.SIGBUS, ctypes.byref(before), None)

    action.handler = ctypes.cast(called := _Handler(handle), ctypes.c_void_p)
    action.flags = _SA_SIGINFO
    _kept.extend((called, library))
    library.sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(before))
