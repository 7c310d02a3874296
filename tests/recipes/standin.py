"""A stand-in for systemd: a program named `systemctl` that stops and starts real processes.

It does what systemd does for a simple unit: SIGTERM, waiting for the end, SIGKILL after the time
that the unit gives. A real manager is none that a test could start: it takes over the control
groups of the machine that it runs on.
"""

import json
import os
import stat
import sys
from pathlib import Path

SYSTEMCTL = """#!{python}
import json, os, pathlib, select, signal, subprocess, sys

verb, unit = sys.argv[1], sys.argv[-1]
told = pathlib.Path({units!r}) / (unit + ".json")
if verb == "show" and not told.exists():
    sys.exit(print("LoadState=not-found\\nActiveState=inactive\\nMainPID=0"))
known = json.loads(told.read_text())


def holding():
    try:
        pid = int(pathlib.Path(known["pid_file"]).read_text())
        descriptor = os.pidfd_open(pid)
    except (OSError, ValueError):
        return 0, None
    ended = select.select([descriptor], [], [], 0)[0]
    return (0, None) if ended else (pid, descriptor)


pid, descriptor = holding()
if verb == "show":
    state = "active" if pid else "inactive"
    print(f"LoadState=loaded\\nActiveState={{state}}\\nMainPID={{pid}}")
elif verb == "stop" and pid:
    os.kill(pid, signal.SIGTERM)
    if not select.select([descriptor], [], [], known["timeout"])[0]:
        os.kill(pid, signal.SIGKILL)
        select.select([descriptor], [], [])
elif verb == "start" and not pid:
    null = subprocess.DEVNULL
    subprocess.Popen(known["argv"], start_new_session=True, stdout=null, stderr=null)
"""


class Units:
    """Units of processes with pid files.

    Args:
        folder: A folder of its own.
    """

    def __init__(self, folder: Path) -> None:
        self._units = folder / "units"
        self._units.mkdir(parents=True)
        program = folder / "systemctl"
        program.write_text(SYSTEMCTL.format(python=sys.executable, units=str(self._units)))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        """The PATH that finds it."""

    def put(self, unit: str, argv: list[str], pid_file: Path, timeout: float) -> None:
        """Have a unit.

        Args:
            unit: Its name.
            argv: What starts it; it writes its number into `pid_file`.
            pid_file: Where.
            timeout: Its TimeoutStopSec, in seconds.
        """
        known = {"argv": argv, "pid_file": str(pid_file), "timeout": timeout}
        (self._units / f"{unit}.json").write_text(json.dumps(known))
