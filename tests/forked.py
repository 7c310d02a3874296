"""Processes of this Python that are forked where the package is imported already.

To start Python and to import the service takes 0.7 s of processor time, the command line 0.2 s, and
the tests start hundreds of both. A forked process is a process of its own, with its streams,
environment, folder, signals and Python's own end. Only its imports were before it: what they are
and do, the tests see that start a command line by `subprocess`.

Each process of tests starts one server, which never starts a thread or a loop and forks the others:
it imports what PRELOADED names, and waits for orders until the process of tests has ended.
"""

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

PRELOADED: Final = (
    "encodings.idna",
    "forewarn.agent.daemon",
    "forewarn.cli.main",
    "forewarn.client.sync",
    "forewarn.connectors.command",
    "forewarn.maintenance.fleet_file",
    "forewarn.relay.run",
    "forewarn.server.run",
    "forewarn.testing.emulator",
    "starlette.routing",
    "psycopg",
    "sqlite3",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
)
"""What services, agents, relays and commands import, at their start and later."""

NETWORK: Final = Path("/proc/thread-self/ns/net")
CLONE_NEWNET: Final = 0x40000000
"""Of setns(2)."""

MOST_FILES: Final = 64
ABOVE: Final = 200
"""Files that are on their way to their own numbers have numbers from here on meanwhile."""


class Forked:
    """A process that runs what `python ARGUMENTS` runs; what it can be asked, a Popen can.

    Args:
        arguments: `-m MODULE ...`, `-c CODE ...` or `SCRIPT ...`.
        stdin, stdout, stderr: A file, PIPE, DEVNULL, or None for those of the tests.
        env: Its environment; None for that of the tests.
        cwd: Its folder; None for that of the tests.
        pass_fds: Further files that it has, by their numbers here.
        start_new_session: Whether it leads a session.
        text: Whether its pipes carry text.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        stdin: IO[Any] | int | None = None,
        stdout: IO[Any] | int | None = None,
        stderr: IO[Any] | int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        pass_fds: Collection[int] = (),
        start_new_session: bool = False,
        text: bool = False,
    ) -> None:
        self.args = [sys.executable, *arguments]
        self.returncode: int | None = None
        self._asking = threading.Lock()
        order = {
            "arguments": list(arguments),
            "environment": dict(os.environ if env is None else env),
            "folder": os.fspath(cwd or Path.cwd()),
            "files": [0, 1, 2, *pass_fds],
            "session": start_new_session,
            "elsewhere": _network() != _server()[1],
        }
        with contextlib.ExitStack() as theirs:
            pipes: list[IO[Any] | None] = []
            files: list[int] = []
            for number, given in enumerate((stdin, stdout, stderr)):
                mine, file = _stream(number, given, theirs, text=text)
                pipes.append(mine)
                files.append(files[1] if given == subprocess.STDOUT else file)
            self.stdin, self.stdout, self.stderr = pipes
            if order["elsewhere"]:
                network = os.open(NETWORK, os.O_RDONLY)
                theirs.callback(os.close, network)
                pass_fds = [*pass_fds, network]
            self._told, asking = socket.socketpair()
            theirs.enter_context(asking)
            _order([asking.fileno(), *files, *pass_fds])
            self._told.sendall(json.dumps(order).encode() + b"\n")
        self._lines = self._told.makefile("rb")
        self.pid = int(self._lines.readline())

    def poll(self) -> int | None:
        """Return how it ended; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its status, less than 0 for a signal."""
        with self._asking:
            if self.returncode is None:
                if not select.select([self._told], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
                self.returncode = int(self._lines.readline())
                self._lines.close()
                self._told.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Return what its pipes still said until its end."""
        said: dict[int, Any] = {}

        def read(number: int, pipe: IO[Any]) -> None:
            with pipe:
                said[number] = pipe.read()

        pipes = [(n, pipe) for n, pipe in enumerate((self.stdout, self.stderr)) if pipe]
        readers = [threading.Thread(target=read, args=each, daemon=True) for each in pipes]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return said.get(0), said.get(1)

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe:
                pipe.close()
        self.wait()


Process: TypeAlias = subprocess.Popen[bytes] | Forked
"""One that was forked, or one that a test needs whole."""


def completed(argv: Sequence[str | Path], **given: Any) -> subprocess.CompletedProcess[str]:
    """Run any program; return how it ended and what it printed."""
    return subprocess.run(argv, capture_output=True, text=True, check=False, **given)


def run(
    arguments: Sequence[str],
    *,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run what `python ARGUMENTS` runs; return how it ended and what it printed."""
    with contextlib.ExitStack() as opened:
        files = [opened.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3)]
        files[0].write(stdin)
        files[0].seek(0)
        process = Forked(
            arguments, stdin=files[0], stdout=files[1], stderr=files[2], env=env, cwd=cwd
        )
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        for file in files[1:]:
            file.seek(0)
        printed = [file.read() for file in files[1:]]
    return subprocess.CompletedProcess(process.args, status, *printed)


def _stream(
    number: int, given: IO[Any] | int | None, theirs: contextlib.ExitStack, *, text: bool
) -> tuple[IO[Any] | None, int]:
    """Return the test's end of one of its streams, if that is a pipe, and the process's end."""
    if given is None or given == subprocess.STDOUT:
        return None, number
    if given == subprocess.PIPE:
        reads, writes = os.pipe()
        mine, file = (writes, reads) if number == 0 else (reads, writes)
        theirs.callback(os.close, file)
        mode = "w" if number == 0 else "r"
        return os.fdopen(mine, mode if text else f"{mode}b"), file
    if given == subprocess.DEVNULL:
        file = os.open(os.devnull, os.O_RDWR)
        theirs.callback(os.close, file)
        return None, file
    return None, given if isinstance(given, int) else given.fileno()


_ordering = threading.Lock()


def _order(files: list[int]) -> None:
    """Hand an order's socket and the process's files to the server."""
    with _ordering:
        socket.send_fds(_server()[0], [b"."], files)


def _network() -> int:
    """Return the number of this thread's network, which what it starts is in."""
    return NETWORK.stat().st_ino if NETWORK.exists() else 0


@functools.cache
def _server() -> tuple[socket.socket, int]:
    """Start the server of this process; return the way to it, and its network."""
    mine, its = socket.socketpair()
    with its:
        command = [sys.executable, __file__, str(its.fileno())]
        nothing = subprocess.DEVNULL
        process = subprocess.Popen(command, stdin=nothing, stdout=nothing, pass_fds=[its.fileno()])

    def end() -> None:
        mine.close()
        process.wait()

    atexit.register(end)
    return mine, _network()


def _serve(orders: socket.socket) -> dict[str, Any] | None:
    """Fork at each order, and tell how each process ends.

    Returns: In a forked process its order; None in the server, when nobody orders any more.
    """
    woken, wakes = socket.socketpair()
    for each in (woken, wakes):
        each.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    asking: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([orders, woken], [], [])
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                woken.recv(4096)
            _reap(asking)
        if orders not in ready:
            continue
        _, files, _, _ = socket.recv_fds(orders, 1, MOST_FILES)
        if not files:
            return None
        asked = socket.socket(fileno=files[0])
        with asked.makefile("rb") as lines:
            order: dict[str, Any] = json.loads(lines.readline())
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (orders, woken, wakes, asked, *asking.values()):
                each.close()
            if order["elsewhere"]:
                _enter(files.pop())
            _take(files[1:], order["files"])
            return order
        for file in files[1:]:
            os.close(file)
        asked.sendall(b"%d\n" % child)
        asking[child] = asked


def _reap(asking: dict[int, socket.socket]) -> None:
    """Tell of each process that has ended how it ended."""
    while asking:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == 0:
            return
        with asking.pop(child) as asked, contextlib.suppress(OSError):  # nobody waits for it
            asked.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _enter(network: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(network, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "the test's network cannot be entered")


def _take(files: list[int], numbers: list[int]) -> None:
    """Give files their numbers, and close all others."""
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, max(ABOVE, *numbers) + 1) for file in files]
    for file, number in zip(moved, numbers, strict=True):
        os.dup2(file, number)
    last = 3
    for number in sorted({*numbers, max(moved) + 1}):
        if number >= last:
            os.closerange(last, number)
            last = number + 1


def _become(order: dict[str, Any]) -> None:
    """Run what was ordered, as Python itself would."""
    if order["session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    time.tzset()
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    assert isinstance(sys.stdout, io.TextIOWrapper)
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty(), write_through=unbuffered)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    kind, *rest = order["arguments"]
    more = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:0] = ["" if kind in {"-c", "-m"} else str(Path(kind).parent), *more]
    if kind == "-c":
        main = types.ModuleType("__main__")
        sys.modules["__main__"], sys.argv = main, ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    elif kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [kind, *rest]
        runpy.run_path(kind, run_name="__main__")


def _run(order: dict[str, Any]) -> int:
    """Run what was ordered; return its exit status as Python would."""
    try:
        _become(order)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        sys.stderr.write(f"{ended.code}\n")
        return 1
    except BaseException as error:  # noqa: BLE001 - it is told as Python tells it
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        return 1
    return 0


def _end(status: int) -> None:
    """End as Python does, but for the modules, which nobody needs to take down one by one."""
    try:
        threading._shutdown()  # type: ignore[attr-defined] # multiprocessing calls it too
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status & 0xFF)


def _main() -> None:
    sys.path.pop(0)  # the tests' folder, which no order has
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # for a test and not for the server
    orders = socket.socket(fileno=int(sys.argv[1]))
    for name in PRELOADED:
        importlib.import_module(name)
    operators = importlib.import_module("forewarn.server.operator.application")
    operators.application(backend=None, page=operators)  # registers the routes, once for all
    gc.collect()
    gc.freeze()
    order = _serve(orders)
    if order is not None:
        _end(_run(order))


if __name__ == "__main__":
    _main()
