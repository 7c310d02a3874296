"""This machine: its cores, what is installed, and what stands beside every figure."""

import compileall
import contextlib
import os
import platform
import resource
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forewarn

CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE = CORES[0]
LOAD_CORES = set(CORES[1:]) or {SERVER_CORE}
"""Where load is made: with one core there is nothing to part, and the figures are worth less."""


def prepare() -> None:
    """Put this process and its children beside the server, with all the files it may have.

    Byte code is written first, as an installation does, whatever the environment says: without it
    a start is mostly the compiler's.
    """
    compileall.compile_dir(Path(forewarn.__file__).parent, quiet=1)
    os.sched_setaffinity(0, LOAD_CORES)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def on_cores(*, alone: bool = True) -> Iterator[None]:
    """Start processes that stay on the server's core; on any core if it is not theirs alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {SERVER_CORE} if alone else set(CORES))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cpu_seconds(session: int) -> float:
    """The processor time that a session's processes have used, to the nanosecond.

    Args:
        session: The process that was started as its leader.
    """
    used = 0
    for process in _processes(session):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for thread in process.glob("task/[0-9]*/schedstat"):
                used += int(thread.read_text(encoding="utf-8").split()[0])
    return used / 1e9


def _processes(session: int) -> Iterator[Path]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
            if int(fields[3]) == session:
                yield stat.parent


def session_kib(session: int) -> int:
    """The memory that a session's processes hold."""
    return sum(memory_kib(int(process.name)) for process in _processes(session))


def memory_kib(pid: int, field: str = "VmRSS") -> int:
    """The memory that a process holds; `VmHWM` is the most that it ever did."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(field)))


def forget_peak(pid: int) -> None:
    """Let the peak of a process's memory begin anew (proc(5), clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def missing(*programs: str) -> list[str]:
    """Which of these are not installed."""
    return [program for program in programs if shutil.which(program) is None]


def described() -> dict[str, Any]:
    """What the figures were taken on."""
    cpus = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.split(":")[1].strip() for line in cpus if line.startswith("model name")), "")
    return {
        "cpu": model or platform.machine(),
        "cores": len(CORES),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
        "wrk": _version("wrk", "-v"),
        "nginx": _version("nginx", "-v"),
        "go": _version("go", "version"),
    }


def _version(*command: str) -> str:
    if missing(command[0]):
        return "missing"
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return (ran.stdout + ran.stderr).splitlines()[0]
