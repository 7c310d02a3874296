"""Nothing of the agent needs POSIX to be imported: told by taking away what Windows lacks."""

import subprocess
import sys

POISON = """
import os, pkgutil, signal, socket, sys

for name in ("fcntl", "pwd", "grp", "resource", "termios"):
    sys.modules[name] = None
for name in ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "pidfd_send_signal", "pthread_sigmask"):
    delattr(signal, name)
for name in ("fork", "killpg", "setsid", "getuid", "geteuid", "pidfd_open", "waitid"):
    delattr(os, name)
delattr(socket, "AF_UNIX")

import forewarn.agent

names = [
    module.name
    for module in pkgutil.walk_packages(forewarn.agent.__path__, "forewarn.agent.")
]
for name in names:
    __import__(name)
print(len(names))
"""


def test_every_module_of_the_agent_is_imported_without_posix() -> None:
    done = subprocess.run(
        [sys.executable, "-c", POISON], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20
