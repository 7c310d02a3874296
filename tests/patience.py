"""Waits for what another process or thread does."""

import threading
import time
from collections.abc import Callable

PATIENCE_SECONDS = 40.0


def until(
    holds: Callable[[], object],
    why: Callable[[], object] = lambda: "",
    *,
    seconds: float = PATIENCE_SECONDS,
    every: float = 0.02,
) -> None:
    """Wait until something holds; say `why` it should where it never does."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, why()
        threading.Event().wait(every)
