"""`forewarn demo`: the whole of it in under 90 seconds, with the real service and real guests."""

import contextlib
import signal
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer

from forewarn.cli.operator import JsonOption

PREFIX: Final = "forewarn-demo-"
"""How the name of the demo's folder begins, below the system's folder for temporary files."""

LONGEST_PLACE: Final = 70
"""The longest path of that folder: a unix socket's path, with the demo's folder in it, has room for
103 characters on every system."""

SHORT_PLACE: Final = Path("/tmp")  # noqa: S108 - the folder made there is this user's alone
"""Where the demo's folder is made if that path is longer."""


def demo(
    *,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Leave it running afterwards, until Ctrl-C, to try things."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """See it whole: a fleet, its guests, maintenance.

    Runs the real service on a temporary database, with guests as processes of their own and a clock
    on which fifteen minutes last ten seconds. It ends by itself in under 90 seconds.
    """
    from forewarn.cli.demo.show import Show

    with _signals_interrupt(), _folder() as folder:
        show = Show(Path(folder), as_json=as_json)
        try:
            show.run()
            if keep:
                show.keep()
        finally:
            with _signals_wait():
                show.close()


def _folder() -> tempfile.TemporaryDirectory[str]:
    place = Path(tempfile.gettempdir())
    if len(str(place)) > LONGEST_PLACE and SHORT_PLACE.is_dir():
        place = SHORT_PLACE
    return tempfile.TemporaryDirectory(prefix=PREFIX, dir=place)


@contextlib.contextmanager
def _signals_interrupt() -> Generator[None]:
    """Take SIGTERM and a closed terminal for Ctrl-C, so that nothing is left behind."""
    before = {number: signal.signal(number, _interrupt) for number in _signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _signals_wait() -> Generator[None]:
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
