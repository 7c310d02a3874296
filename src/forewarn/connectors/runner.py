"""Runs one program and leaves its result in a file: a process of its own, one for each run.

`command` starts it in a session of its own, so neither Ctrl-C nor the end of the service
reaches it or the program. Run as `python -I -S runner.py`, it imports nothing of the package, and
of the standard library only what costs next to nothing (`signal` alone would take as long as all
else together, for it builds enums; hence `_signal`).

Its arguments: the descriptor that tells that it lives, the run's folder, the time limit and the
grace in seconds, and the program with its own arguments. Its environment is the program's.

In the folder it finds `task.json`, the program's standard input. It leaves `begun` before it starts
the program and `result` after that has ended, each durable before it goes on.
"""

import _signal  # type: ignore[import-not-found] # typeshed knows it as signal only
import errno
import os
import select
import sys
import time

SIGTERM = 15
SIGKILL = 9
"""As POSIX numbers them."""

OUT_BYTES = 1024 * 1024
"""The bytes kept of the end of standard output: the new hosts of ten thousand machines."""

ERR_BYTES = 4 * 1024
"""The bytes kept of the end of standard error: more than history holds of it."""

READ_BYTES = 64 * 1024
DRAIN_READS = 64
"""The most reads of the pipes after a program has ended: their content, but not for ever where a
process that it left behind goes on writing."""

MAX_POLL_SECONDS = 24 * 3600.0
"""The longest wait in poll(2), whose milliseconds are an int: a task may wait for months."""

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENFILE, errno.EMFILE}
ROOM_SECONDS = 1.0
MAX_ROOM_SECONDS = 3600.0
"""The pause between two looks for room on a full disk, or for a free descriptor, and the longest
wait: without its result nobody knows how a task ended."""

NOT_RUN = 127
"""The child's exit status if the program cannot be run; the reason comes through a pipe."""


def main(arguments: list[str]) -> None:
    """Run one program to its end, by the arguments that the module names."""
    alive = int(arguments[0])
    folder, limit, grace = arguments[1], float(arguments[2]), float(arguments[3])
    os.set_inheritable(alive, False)  # noqa: FBT003 - its only parameter
    for number in (SIGTERM, _signal.SIGINT, _signal.SIGHUP):
        _signal.signal(number, _signal.SIG_IGN)  # they are the program's business, we report
    _write(folder, "begun", b"%d\n" % os.getpid())
    result = _run(folder, arguments[4:], limit, grace)
    until = _now() + MAX_ROOM_SECONDS
    while True:
        try:
            return _write(folder, "result", result)
        except OSError as error:
            if error.errno not in NO_ROOM or _now() >= until:
                raise
        time.sleep(ROOM_SECONDS)  # noqa: TID251 - a process of its own, without the package's clock


def _run(folder: str, argv: list[str], limit: float, grace: float) -> bytes:
    opened: list[int] = []
    try:
        opened.append(os.open(folder + "/task.json", os.O_RDONLY))
        for _ in range(4):
            opened += os.pipe()
        source, out, out_end, err, err_end, trouble, trouble_end, ended, ended_end = opened
        # SIGCHLD tells of the end: a thread for it may not be had once the program runs.
        os.set_blocking(ended_end, False)
        _signal.set_wakeup_fd(ended_end)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_signal.SIGCHLD,))  # as inherited, perhaps
        pid = os.fork()
    except OSError as error:  # the system gives no more files or processes
        for descriptor in opened:
            os.close(descriptor)
        return _result(b"refused", error.errno or 0, 0, b"", b"")
    if pid == 0:
        _become(argv, (source, out_end, err_end), trouble_end)
    for descriptor in (source, out_end, err_end, trouble_end):
        os.close(descriptor)
    if refusal := os.read(trouble, 16):
        os.waitpid(pid, 0)
        return _result(b"refused", int(refusal), 0, b"", b"")
    tails, stage = _follow(pid, {out: OUT_BYTES, err: ERR_BYTES}, ended, (limit, grace))
    if stage:
        _kill(pid, SIGKILL)  # what it left behind; its number is not free before it is reaped
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    kind = b"exit" if status >= 0 else b"signal"
    return _result(kind, abs(status), stage, tails[out], tails[err])


def _become(argv: list[str], standard: tuple[int, int, int], trouble: int) -> None:
    try:
        os.setsid()
        for target, descriptor in enumerate(standard):
            os.dup2(descriptor, target)
        for number in (SIGTERM, _signal.SIGINT, _signal.SIGHUP, _signal.SIGPIPE):
            _signal.signal(number, _signal.SIG_DFL)
        os.execve(argv[0], argv, os.environ)  # noqa: S606 - no shell is the point
    except OSError as error:
        os.write(trouble, b"%d" % (error.errno or 0))
    finally:
        os._exit(NOT_RUN)


def _follow(
    pid: int, kept: dict[int, int], ended: int, limits: tuple[float, float]
) -> tuple[dict[int, bytes], int]:
    """Read the pipes until the program has ended, and end it when its time is over.

    Returns their ends, and its stage: 0 it ended by itself, 1 it was asked to end, 2 killed.
    """
    tails = dict.fromkeys(kept, b"")
    reading, over, stage = set(kept), False, 0
    deadline = _now() + limits[0]
    poll = select.poll()
    for descriptor in (*kept, ended):
        poll.register(descriptor, select.POLLIN)
    # Asked to end, what it began has the grace too, as long as it holds one of the pipes.
    while not over or (stage == 1 and reading):
        wait = None if stage == 2 else max(0, min(deadline - _now(), MAX_POLL_SECONDS)) * 1000
        for descriptor, _ in poll.poll(wait):
            if descriptor == ended:
                over = bool(os.read(ended, READ_BYTES)) and _has_ended(pid)
            elif not _take(descriptor, kept, tails):
                poll.unregister(descriptor)
                reading.remove(descriptor)
        if stage < 2 and _now() >= deadline:
            if over:
                break
            stage += 1
            _kill(pid, SIGTERM if stage == 1 else SIGKILL)
            deadline = _now() + limits[1]
    for descriptor in kept:
        os.set_blocking(descriptor, False)
        for _ in range(DRAIN_READS):
            if not _take(descriptor, kept, tails):
                break
    return tails, stage


def _has_ended(pid: int) -> bool:
    """Return True if the program has ended, not only stopped; it is left to be reaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _take(descriptor: int, kept: dict[int, int], tails: dict[int, bytes]) -> bool:
    try:
        data = os.read(descriptor, READ_BYTES)
    except BlockingIOError:
        return False
    tails[descriptor] = (tails[descriptor] + data)[-kept[descriptor] :]
    return bool(data)


def _kill(group: int, number: int) -> None:
    try:  # noqa: SIM105 - contextlib would double the start-up time
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass  # all of it is gone, or it runs as somebody else: then its own end is waited for


def _result(kind: bytes, number: int, stage: int, out: bytes, err: bytes) -> bytes:
    return b"%s %d %d %d %d\n%s%s" % (kind, number, stage, len(out), len(err), out, err)


def _write(folder: str, name: str, data: bytes) -> None:
    """Write a file that is there whole or not at all, and still is after a power cut."""
    place = folder + "/" + name
    descriptor = os.open(place + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        written = 0
        while written < len(data):
            written += os.write(descriptor, data[written:])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(place + ".new", place)  # noqa: PTH104 - pathlib would double the start-up time
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _now() -> float:
    return time.monotonic()  # noqa: TID251 - a process of its own, without the package's clock


if __name__ == "__main__":
    main(sys.argv[1:])
