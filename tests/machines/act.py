"""A connector's program: carries a reboot out as `how` in its folder says, and waits for `over`.

`cut` takes the machine's power away, `systemctl` reboots it in good order, `nothing` does nothing.
"""

import contextlib
import itertools
import sys
import threading
from pathlib import Path

from machines.machine import Inside, Rebooted, cut


def main(folder: Path) -> None:
    how = (folder / "how").read_text()
    if how != "nothing":
        inside = Inside(folder / "power.sock")
        inside.run("true")  # which tells this boot
        before = inside.boot
        if how == "cut":
            cut(folder)
        else:
            with contextlib.suppress(Rebooted):  # before it has said how the command ended
                inside.run("systemctl", "reboot")
        inside.booted(since=before)
        inside.close()
    for _ in itertools.takewhile(lambda _: not (folder / "over").exists(), itertools.count()):
        threading.Event().wait(0.05)


main(Path(sys.argv[1]))
