"""What a test of root has to itself: a copy of /etc, and the user as whom the unit runs."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

ETC = Path("/etc")
USER = "forewarn"
USER_ID = 61184
"""The first of those that systemd gives to units with DynamicUser."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
READS_ALL = "dac_read_search"
"""The unit's user has it nowhere; here it reads a checkout that may be below somebody's home."""


@contextlib.contextmanager
def own_etc(folder: Path) -> Iterator[Path]:
    """Have a copy of /etc in this namespace; root's home is a folder, which this gives."""
    home = folder / "operator"
    home.mkdir(mode=0o700)
    copied = folder / "etc"
    shutil.copytree(ETC, copied, symlinks=True, ignore_dangling_symlinks=True)
    copied.chmod(0o755)
    _replace(copied / "passwd", "root", f"root:x:0:0:root:{home}:/bin/sh")
    _replace(copied / "passwd", USER, f"{USER}:x:{USER_ID}:{USER_ID}::/:/usr/sbin/nologin")
    _replace(copied / "group", USER, f"{USER}:x:{USER_ID}:")
    _replace(copied / "shadow", "root", "root:*:19000:0:99999:7:::")
    for path in copied.joinpath("polkit-1").rglob("*"):
        owner = (ETC / path.relative_to(copied)).stat()
        os.chown(path, owner.st_uid, owner.st_gid)
    subprocess.run(["mount", "--bind", copied, ETC], check=True)
    try:
        yield home
    finally:
        subprocess.run(["umount", "--lazy", ETC], check=True)


def _replace(path: Path, name: str, line: str) -> None:
    """Write one account's line, the one that there was left out."""
    others = [one for one in path.read_text().splitlines() if not one.startswith(f"{name}:")]
    path.write_text("\n".join([*others, line, ""]))


def write(path: str, text: str, mode: int = 0o644) -> None:
    """Write one of the files that a page names, at the place that it names."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
    Path(path).chmod(mode)


def as_the_unit(*more: str, groups: str = "") -> list[str]:
    """Return what runs a command as the unit does: its user, its capabilities, no home.

    Args:
        more: Capabilities that the unit has not.
        groups: What `SupplementaryGroups=` adds.
    """
    kept = ",".join(("-all", "+net_bind_service", *(f"+{each}" for each in more)))
    return [
        *("env", "-i", f"PATH={PATH}", "HOME=/", "setpriv", "--no-new-privs"),
        *(f"--reuid={USER}", f"--regid={USER}"),
        f"--groups={groups}" if groups else "--clear-groups",
        *(f"--inh-caps={kept}", f"--ambient-caps={kept}", f"--bounding-set={kept}"),
    ]
