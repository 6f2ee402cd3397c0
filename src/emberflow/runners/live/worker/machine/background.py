"""Work in the background: what a process does before anybody waits for it, while others of the machine serve.

An added worker imports its modules and reads its state before it takes over. The workers that serve need the same
cores. On Linux the priority of a thread can be lowered, but not raised again, so such work has a thread of its own.
It has to be alone in its process: a thread that waits for it, or for the interpreter, waits long.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: Two fifths of what others get of a core that all want.
NICENESS = 4


def in_background(work: Callable[[], T]) -> T:
    """Do some work with low priority, and wait for what it returns or raises.

    >>> in_background(lambda: 6 * 7)
    42
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        if platform.system() == "Linux":  # elsewhere it is that of the process
            os.nice(NICENESS)
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="emberflow background", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
