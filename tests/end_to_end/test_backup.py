"""A backup is put back by the guides' own steps, and what a kill left does not undo it."""

import contextlib
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path

from end_to_end.production import by_this_python, example
from end_to_end.running import Running


def moved(command: str, folder: Path) -> str:
    """Return a command of the guides with its places in this folder, and without systemd."""
    own = f'forewarn() {{ {shlex.quote(sys.executable)} -m forewarn "$@"; }}\n'
    lines = [line for line in command.splitlines() if not line.startswith("systemctl ")]
    text = "\n".join(lines).replace("/var/backups", str(folder / "backups"))
    return own + by_this_python(text).replace("/var/lib/forewarn", str(folder))


def by_the_guide(words: str, folder: Path) -> None:
    subprocess.run(["sh", "-ec", moved(example("sh", words), folder)], check=True)


def killed_after_a_backup(folder: Path) -> Running:
    """A service that was killed, and whose last change, a cancel, its backup does not have."""
    service = Running(folder)
    (folder / "backups").mkdir()
    service.start()
    try:
        service.apply('[[machine]]\nname = "web-0"\n')
        service.document("schedule", "reboot", "web-0")
        by_the_guide("live.backup", folder)
        service.document("cancel", "1")
    finally:
        service.kill()
    assert (folder / "forewarn.db-wal").stat().st_size
    return service


def test_a_backup_is_put_back_after_a_kill_by_the_guides_steps(folder: Path) -> None:
    service = killed_after_a_backup(folder)
    by_the_guide("restore-check", folder)
    (aside,) = folder.glob("aside.*")
    assert {"forewarn.db", "forewarn.db-wal"} <= {file.name for file in aside.iterdir()}
    service.start()
    try:
        (event,) = service.document("events")["events"]
        assert (event["machines"], event["status"]) == (["web-0"], "Scheduled")
    finally:
        assert service.stop() == 0
    with contextlib.closing(sqlite3.connect(folder / "forewarn.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
