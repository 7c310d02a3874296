"""Runs a program to its end, and ends it with all that it began when it is told to stop."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import IO, Final

from forewarn.agent.actions.work import Cut, Failed, Work

GRACE_SECONDS: Final = 10.0
"""Between SIGTERM and SIGKILL: a program's time to put things in order."""

TAIL_BYTES: Final = 4096
"""How much of the end of a program's output is kept, for the log and for what went wrong."""

READ_BYTES: Final = 65536
LEFT_OVER_SECONDS: Final = 1.0
"""How long a pipe is still read whose program has ended: whoever holds it may hold it for ever."""


OWN: Final = frozenset({"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"})
"""The agent's business with systemd, and no program's."""


def run(
    argv: Sequence[str], work: Work, *, told: bytes = b"", environment: Mapping[str, str] = {}
) -> tuple[int, str]:
    """Run a program in a process group of its own.

    Args:
        argv: The program, a path or a name that PATH finds, and its arguments; no shell reads it.
        work: Whose time it is; told to stop, the group gets SIGTERM, and SIGKILL after 10 s.
        told: What it reads on its standard input.
        environment: Its variables beside the agent's own.

    Returns:
        Its exit status (below 0: the signal that ended it), and the end of what it wrote.

    Raises:
        Failed: It could not be begun.
        Cut: It was told to stop.
    """
    program = shutil.which(argv[0])
    if program is None:
        message = f"there is no program {argv[0]!r} that may be run"
        raise Failed(message)
    try:
        process = subprocess.Popen(  # noqa: S603 - running what the settings name is the point
            [program, *argv[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={k: v for k, v in os.environ.items() if k not in OWN} | dict(environment),
            start_new_session=sys.platform != "win32",
        )
    except OSError as error:
        message = f"{program} cannot be run: {error.strerror}"
        raise Failed(message) from error
    assert process.stdin is not None
    assert process.stdout is not None
    tail: deque[bytes] = deque()
    reader = threading.Thread(target=_read, args=(process.stdout, tail), daemon=True)
    writer = threading.Thread(target=_write, args=(process.stdin, told), daemon=True)
    last = threading.Timer(GRACE_SECONDS, _kill, (process,))
    last.daemon = True

    def end() -> None:
        _terminate(process)
        last.start()

    try:
        reader.start()
        writer.start()
        with work.ending(end):
            status = process.wait()
    except Cut:  # it was told before it had begun to wait
        _kill(process)
        process.wait()
        raise
    finally:
        last.cancel()
        _kill(process)  # what it left behind in its group
        if reader.ident is not None:  # it was begun
            reader.join(LEFT_OVER_SECONDS)
    if work.stopped:
        raise Cut
    return status, b"".join(tail)[-TAIL_BYTES:].decode("utf-8", "replace").strip()


def _read(pipe: IO[bytes], tail: deque[bytes]) -> None:
    with contextlib.suppress(OSError, ValueError), pipe:
        while chunk := os.read(pipe.fileno(), READ_BYTES):
            kept = b"".join(tail) + chunk
            tail.clear()
            tail.append(kept[-TAIL_BYTES:])


def _write(pipe: IO[bytes], told: bytes) -> None:
    with contextlib.suppress(OSError), pipe:  # a program need not read what it is told
        pipe.write(told)


def _terminate(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        process.terminate()
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
