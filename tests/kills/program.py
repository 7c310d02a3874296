"""The connector's program: notes that it starts, works a little, notes that it ends.

It stands alone, so that it starts fast; its log is one of the two witnesses of the judge. How long
it works and how it ends follow from the operation alone, so a repeated act would end the same way.
"""

import json
import os
import select
import sys
import time
import zlib

LONGEST_SECONDS = 0.12
FAILS_OF_HUNDRED = 8


def lot(operation: str, salt: str) -> int:
    """Return a number from 0 to 99 that belongs to an operation."""
    return zlib.crc32(f"{salt}:{operation}".encode()) % 100


def main(log: str) -> int:
    operation = os.environ["FOREWARN_OPERATION"]
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(what: str, **facts: int) -> None:
        entry = {
            "what": what,
            "at": time.time(),
            "operation": operation,
            "machine": os.environ.get("FOREWARN_MACHINE", ""),
            "attempt": int(os.environ["FOREWARN_ATTEMPT"]),
            **facts,
        }
        os.write(file, json.dumps(entry).encode() + b"\n")
        os.fsync(file)

    status = 1 if lot(operation, "fails") < FAILS_OF_HUNDRED else 0
    note("start")
    select.select([], [], [], LONGEST_SECONDS * lot(operation, "works") / 100)  # its work
    if os.environ["FOREWARN_EVENT_TYPE"] == "Redeploy":  # it comes back where it was
        machine = os.environ["FOREWARN_MACHINE"]
        print(json.dumps({"hosts": {machine: os.environ["FOREWARN_HOST"]}}))
    note("end", status=status)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
