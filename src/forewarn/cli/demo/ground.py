"""What a demonstration stands on: a folder of its own, and an end that leaves nothing."""

import contextlib
import signal
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Final

PREFIX: Final = "forewarn-demo-"
"""How the name of the demo's folder begins, below the system's folder for temporary files."""

LONGEST_PLACE: Final = 70
"""The longest path of that folder: a unix socket's path, with the demo's folder in it, has room for
103 characters on every system."""

SHORT_PLACE: Final = Path("/tmp")  # noqa: S108 - the folder made there is this user's alone
"""Where the demo's folder is made if that path is longer."""


def folder() -> tempfile.TemporaryDirectory[str]:
    """Return a new folder, which is removed with all that is in it."""
    place = Path(tempfile.gettempdir())
    if len(str(place)) > LONGEST_PLACE and SHORT_PLACE.is_dir():
        place = SHORT_PLACE
    return tempfile.TemporaryDirectory(prefix=PREFIX, dir=place)


@contextlib.contextmanager
def signals_interrupt() -> Generator[None]:
    """Take SIGTERM and a closed terminal for Ctrl-C, so that nothing is left behind."""
    before = {number: signal.signal(number, _interrupt) for number in _signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def signals_wait() -> Generator[None]:
    """Let nobody interrupt what cleans up; it takes seconds at most."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signals() -> list[signal.Signals]:
    if threading.current_thread() is not threading.main_thread():
        return []  # only the main thread may say what a signal does
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    return [getattr(signal, name) for name in names if hasattr(signal, name)]


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
