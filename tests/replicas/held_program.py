"""A connector's program that works for as long as a test wants: until the file LOG.hold is gone.

It stands alone, so that it starts fast.

    held_program.py LOG          notes its start, works, notes its end
    held_program.py LOG check    tells whether an end was noted
"""

import json
import os
import select
import sys
import time
from pathlib import Path


def main(log: Path) -> int:
    """Carry out; notes also who can be killed for it."""
    _note(log, "start", pid=os.getpid(), runner=os.getppid())
    hold = log.with_suffix(".hold")
    while hold.exists():
        select.select([], [], [], 0.02)
    _note(log, "end", status=0)
    return 0


def check(log: Path) -> int:
    """Tell what became of it."""
    entries = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    named = os.environ["FOREWARN_OPERATION"], os.environ["FOREWARN_MACHINE"]
    ends = [e for e in entries if (e["operation"], e["machine"]) == named and e["what"] == "end"]
    if not ends:
        print(json.dumps({"done": False}))
    return 0


def _note(log: Path, what: str, **facts: int) -> None:
    entry = {
        "what": what,
        "at": time.time(),
        "operation": os.environ["FOREWARN_OPERATION"],
        "machine": os.environ["FOREWARN_MACHINE"],
        "attempt": int(os.environ["FOREWARN_ATTEMPT"]),
        **facts,
    }
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, json.dumps(entry).encode() + b"\n")
    os.close(file)


if __name__ == "__main__":
    sys.exit(check(Path(sys.argv[1])) if sys.argv[2:] == ["check"] else main(Path(sys.argv[1])))
