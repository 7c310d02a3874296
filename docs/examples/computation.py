"""A computation in steps that saves its state when it gets SIGUSR1, and resumes from there.

Usage: computation.py CHECKPOINT STEPS
"""

import hashlib
import json
import logging
import os
import signal
import sys
from pathlib import Path

HASHES = 500  # in a step: about a millisecond

log = logging.getLogger("computation")


class Computation:
    """The result so far: each step's value depends on all those before it."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.step = 0
        self.value = ""
        self.asked = False
        self.ending = False

    def ask(self, number: int, _: object) -> None:
        """Only record the signal: the loop acts on it between two steps."""
        self.asked = True
        self.ending = self.ending or number == signal.SIGTERM

    def resume(self) -> None:
        """Resume from the checkpoint; if it cannot be read, fail instead of starting over."""
        if self.checkpoint.exists():
            kept = json.loads(self.checkpoint.read_text(encoding="utf-8"))
            self.step, self.value = kept["step"], kept["value"]

    def advance(self) -> None:
        value = f"{self.step} {self.value}"
        for _ in range(HASHES):
            value = hashlib.sha256(value.encode()).hexdigest()
        self.step, self.value = self.step + 1, value

    def save(self) -> None:
        """Write a checkpoint atomically: the file is always whole, the last one or this one."""
        written = self.checkpoint.with_name(self.checkpoint.name + ".new")
        with written.open("w", encoding="utf-8") as file:
            json.dump({"step": self.step, "value": self.value}, file)
            file.flush()
            os.fsync(file.fileno())
        written.replace(self.checkpoint)
        folder = os.open(self.checkpoint.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # so that the new name is on the disk as well
        finally:
            os.close(folder)


def main() -> None:
    computation = Computation(Path(sys.argv[1]))
    for number in (signal.SIGUSR1, signal.SIGTERM):  # first of all: unhandled, they end it
        signal.signal(number, computation.ask)
    steps = int(sys.argv[2])
    computation.resume()
    log.info("from step %d", computation.step)
    while computation.step < steps and not computation.ending:
        computation.advance()
        log.info("step %d", computation.step)
        if computation.asked:
            computation.asked = False
            try:
                computation.save()
            except OSError as error:  # the old one is still whole, and the work goes on
                log.error("no checkpoint: %s", error)  # noqa: TRY400 - the error says it all
            else:
                log.info("checkpoint at step %d", computation.step)
    if computation.step >= steps:
        log.info("result %s", computation.value)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    main()
