"""Waits for what another process or thread does."""

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
"""An end to waiting, for a machine that does much else."""


def until(
    holds: Callable[[], T | None],
    why: Callable[[], object] = lambda: "",
    *,
    seconds: float = PATIENCE_SECONDS,
    every: float = 0.02,
) -> T:
    """Return what is asked for once it is true; say `why` it should be where it never is."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, why()
        threading.Event().wait(every)
    return found


def eventually(question: Callable[[], Any], wanted: Any) -> None:
    """Ask until the answer is as wanted."""
    until(lambda: question() == wanted, question)
