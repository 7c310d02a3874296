"""What can be told of Windows without one: no import needs POSIX, no action that does is taken.

Told by taking away what Windows lacks, and by judging settings as on that platform.
"""

import subprocess
import sys
from pathlib import Path

POISON = """
import os, pkgutil, signal, socket, sys

for name in ("fcntl", "pwd", "grp", "resource", "termios"):
    sys.modules[name] = None
for name in ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "pidfd_send_signal", "pthread_sigmask"):
    delattr(signal, name)
for name in ("fork", "killpg", "setsid", "getuid", "geteuid", "pidfd_open", "waitid"):
    delattr(os, name)
delattr(socket, "AF_UNIX")
"""

IMPORT = """
import forewarn.agent

names = [
    module.name
    for module in pkgutil.walk_packages(forewarn.agent.__path__, "forewarn.agent.")
]
for name in names:
    __import__(name)
print(len(names))
"""

CHECK = """
from forewarn.agent import settings
from forewarn.cli import main

settings.load.__kwdefaults__["platform"] = "win32"
sys.exit(main.execute(["agent", "check", "--config", sys.argv[1]]))
"""

STEPS = {"command": "run = ['stop.exe']", "service": "stop = 'web'"}


def poisoned(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", POISON + program, *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def written(folder: Path, kind: str, terms: str) -> Path:
    path = folder / "agent.toml"
    path.write_text(f"[[rule]]\nname = 'r'\nprepare = [{{ {kind} = {{ {terms} }} }}]\n")
    return path


def test_every_module_of_the_agent_is_imported_without_posix() -> None:
    done = poisoned(IMPORT)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10


def test_check_itself_runs_without_posix_and_refuses_in_one_line(tmp_path: Path) -> None:
    refused = poisoned(CHECK, str(written(tmp_path, "service", STEPS["service"])))
    assert refused.returncode == 2, refused.stderr
    (line,) = refused.stderr.splitlines()
    assert "prepare[0].service" in line
    taken = poisoned(CHECK, str(written(tmp_path, "command", STEPS["command"])))
    assert taken.returncode == 0, taken.stderr
    assert "r: command; approve never" in taken.stdout
