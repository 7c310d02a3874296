"""Finds what a test leaves open in its process.

Other tests share the process: what they left may end meanwhile, so a count says nothing. Only what
was not there before is a test's own.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import patience

FILES = Path("/proc/self/fd")


def open_files() -> set[tuple[str, str]]:
    """Return the open files, each by its number and what it leads to."""
    gc.collect()
    found = set()
    for file in FILES.iterdir():
        try:
            found.add((file.name, str(file.readlink())))
        except FileNotFoundError:  # the folder's own, or closed since
            continue
    return found


@contextmanager
def check_nothing_left() -> Iterator[None]:
    """Fail if a thread or an open file of the body outlives it; a thread may take time to end."""
    threads, files = set(threading.enumerate()), open_files()
    yield
    for thread in set(threading.enumerate()) - threads:
        thread.join(patience.SECONDS)
        assert not thread.is_alive(), thread
    assert open_files() <= files


def alive(pid: int) -> bool:
    """Tell whether a process runs; one that has ended may not have been reaped yet."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return "Z" not in told.rpartition(")")[2].split()[:1]


def children(pid: int) -> list[int]:
    """Return the processes that any thread of a process has started, and that are still there."""
    found: list[str] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):  # a thread that has ended meanwhile
            found += (task / "children").read_text().split()
    return [int(each) for each in found]
