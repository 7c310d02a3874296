"""A file of JSON lines that one process appends to and syncs: what the judge goes by.

Nothing here imports anything of the service.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Journal:
    """What one process saw, each line durable when `write` returns."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, what: str, **facts: Any) -> None:
        """Append one entry, with the machine's time unless it is given as `at`."""
        entry = {"what": what, "at": time.time(), **facts}
        os.write(self._file, json.dumps(entry).encode() + b"\n")
        os.fsync(self._file)


class Follower:
    """Reads a journal as it grows: each entry once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def news(self) -> list[dict[str, Any]]:
        """Return the entries since the last call; a line that is not whole yet waits."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        return [json.loads(line) for line in whole.splitlines()]


def read(path: Path) -> list[dict[str, Any]]:
    """Return what was written, in its order; nothing where there is no such file."""
    return list(_entries(path)) if path.exists() else []


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text("utf-8").splitlines():
        yield json.loads(line)
