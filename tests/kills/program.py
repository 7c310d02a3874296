"""The connector's program: notes that it starts, works a little, notes that it ends.

It stands alone, so that it starts fast; its log is one of the two witnesses of the judge. How long
it works and how it ends follow from the operation alone, so a repeated act would end the same way.

    program.py LOG               carries out
    program.py LOG check         tells what became of earlier attempts, and keeps them from starting
    program.py LOG held          carries out for as long as there is a file `program.hold` beside it
    program.py LOG held check    tells whether it was carried out to its end
"""

import fcntl
import json
import os
import select
import sys
import time
import zlib
from typing import Any

LONGEST_SECONDS = 0.12
FAILS_OF_HUNDRED = 8
FENCED = 75
"""The status of a run that found its attempt fenced: it did nothing."""

UNKNOWN = 76
CHECK_SECONDS = 2.0
"""How long a check waits for the end of a run: many times what the longest takes."""


class Log:
    """The log, with one process at a time that reads it and adds a line by what it read."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._told = {
            "operation": os.environ["FOREWARN_OPERATION"],
            "machine": os.environ.get("FOREWARN_MACHINE", ""),
            "attempt": int(os.environ["FOREWARN_ATTEMPT"]),
        }

    def note(self, what: str, **facts: int) -> None:
        entry = {"what": what, "at": time.time(), **self._told, **facts}
        os.write(self._file, json.dumps(entry).encode() + b"\n")
        os.fsync(self._file)

    def entries(self) -> list[dict[str, Any]]:
        """Return what was noted of this operation and machine."""
        data = os.pread(self._file, os.fstat(self._file).st_size, 0)
        mine = self._told["operation"], self._told["machine"]
        found = [json.loads(line) for line in data.splitlines()]
        return [one for one in found if (one["operation"], one["machine"]) == mine]

    def begin(self) -> bool:
        """Note the start, unless a later attempt has fenced this one off."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        fences = [one["attempt"] for one in self.entries() if one["what"] == "fence"]
        may = max(fences, default=0) <= self._told["attempt"]
        if may:
            self.note("start")
        fcntl.lockf(self._file, fcntl.LOCK_UN)
        return may

    def fence(self) -> list[dict[str, Any]]:
        """Return what was noted; keep earlier attempts from starting if none has."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        found = self.entries()
        if not any(one["what"] == "start" for one in found):
            self.note("fence")
        fcntl.lockf(self._file, fcntl.LOCK_UN)
        return found


def lot(operation: str, salt: str) -> int:
    """Return a number from 0 to 99 that belongs to an operation."""
    return zlib.crc32(f"{salt}:{operation}".encode()) % 100


def carry_out(log: Log) -> int:
    operation = os.environ["FOREWARN_OPERATION"]
    status = 1 if lot(operation, "fails") < FAILS_OF_HUNDRED else 0
    if not log.begin():
        return FENCED
    select.select([], [], [], LONGEST_SECONDS * lot(operation, "works") / 100)  # its work
    say_hosts()
    log.note("end", status=status)
    return status


def check(log: Log) -> int:
    """Tell that it is done, or that it never began; nothing of a run that failed."""
    found = log.fence()
    if not any(one["what"] == "start" for one in found):
        print(json.dumps({"done": False}))
        return 0
    until = time.monotonic() + CHECK_SECONDS
    while not (ends := [one["status"] for one in log.entries() if one["what"] == "end"]):
        if time.monotonic() > until:
            return UNKNOWN
        select.select([], [], [], 0.01)
    if ends[-1]:
        return UNKNOWN
    say_hosts()
    return 0


def carry_out_held(log: Log) -> int:
    """Carry out; note also who can be killed for it."""
    log.note("start", pid=os.getpid(), runner=os.getppid())
    hold = sys.argv[1].removesuffix("log") + "hold"
    while os.path.exists(hold):  # noqa: PTH110 - pathlib takes longer than the program
        select.select([], [], [], 0.02)
    log.note("end", status=0)
    return 0


def check_held(log: Log) -> int:
    if not any(one["what"] == "end" for one in log.entries()):
        print(json.dumps({"done": False}))
    return 0


WORK = {
    (): carry_out,
    ("check",): check,
    ("held",): carry_out_held,
    ("held", "check"): check_held,
}


def say_hosts() -> None:
    if os.environ["FOREWARN_EVENT_TYPE"] == "Redeploy":  # it comes back where it was
        machine = os.environ["FOREWARN_MACHINE"]
        print(json.dumps({"hosts": {machine: os.environ["FOREWARN_HOST"]}}))


if __name__ == "__main__":
    sys.exit(WORK[tuple(sys.argv[2:])](Log(sys.argv[1])))
