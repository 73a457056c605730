"""Guard of `os._exit`, which ends a process without a word."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def guarding_exit(end: Callable[[int], int]) -> Iterator[None]:
    """Call `end` with the code of an `os._exit` inside, of which nobody hears otherwise.

    Children are forked with it and end by it: theirs stays what it was.
    """
    real, pid = os._exit, os.getpid()

    def end_and_exit(status: int) -> NoReturn:
        os._exit = real
        try:
            status = end(status) if os.getpid() == pid else status
        finally:
            real(status)

    os._exit = end_and_exit
    try:
        yield
    finally:
        os._exit = real
