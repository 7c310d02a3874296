"""The first process of a PID namespace: it reaps whatever is left to it.

Without it libvirt waits forty seconds for each QEMU that has ended. It runs one command: with
`--stay` it outlives it, as a host outlives its libvirtd, and runs it again at SIGUSR1.
"""

import os
import signal
import sys


def main(stay: bool, command: list[str]) -> int:
    running = _run(command)
    again = {signal.SIGUSR1} if stay else set()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *again})
    while True:
        while (ended := _reaped()) is not None:
            if ended[0] == running and not stay:
                return os.waitstatus_to_exitcode(ended[1]) & 0xFF
        if signal.sigwait({signal.SIGCHLD, *again}) == signal.SIGUSR1:
            running = _run(command)


def _run(command: list[str]) -> int:
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        os.execvp(command[0], command)
    return child


def _reaped() -> tuple[int, int] | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


if __name__ == "__main__":
    stays = sys.argv[1] == "--stay"
    sys.exit(main(stays, sys.argv[1 + stays :]))
