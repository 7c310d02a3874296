"""A file of JSON lines that one process appends to and syncs: what the judge goes by.

Nothing here imports anything of the service.
"""

import json
import os
import time
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


def read(path: Path) -> list[dict[str, Any]]:
    """Return what was written, in its order; nothing where there is no such file."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]
