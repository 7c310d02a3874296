"""What settings files have in common, and what a process does before it has threads."""

import subprocess
import sys

import patience

THREADS = """
import enum, sys, threading
import msgspec
from forewarn.settings import prepare_types

sys.setswitchinterval(1e-6)
kinds = []
for number in range(300):
    kind = enum.StrEnum(f"E{number}", ["A", "B"])
    fields = [("one", kind | None, None), ("other", kind | None, None)]
    kinds.append(msgspec.defstruct(f"S{number}", fields))
prepare_types()
for kind in kinds:
    at_once = threading.Barrier(4)

    def decode():
        at_once.wait()
        msgspec.convert({"one": "a", "other": "b"}, kind)

    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_that_decode_one_type_at_once_do_not_end_the_process() -> None:
    """As they do without: msgspec looks at a type when it is first decoded."""
    ended = subprocess.run(
        [sys.executable, "-c", THREADS],
        capture_output=True,
        timeout=patience.SECONDS,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
