"""Installs a process as a systemd service, or removes it: carries out the steps of `installation`.

The units, sample settings, alert rules and the dashboard are in the wheel, in the folder
`forewarn/packaging`; in a checkout they are in `packaging`.
"""

import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import zipimport
from collections.abc import Sequence
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Final

import forewarn
from forewarn.cli import installation, output
from forewarn.cli.exits import ExitStatus, Failed
from forewarn.cli.installation import Component, Environment, InstallStep, StepKind, Surroundings

NO_LOGIN: Final = "/usr/sbin/nologin"
"""The shell of a user who never logs in."""

BOOTED: Final = Path("/run/systemd/system")
"""Is there if systemd runs the machine, sd_booted(3)."""


def packaged(name: str) -> str:
    """Return the text of a file that is shipped with the package."""
    shipped = resources.files(forewarn) / "packaging" / name
    checkout = Path(__file__).parents[3] / "packaging" / name
    return (shipped if shipped.is_file() else checkout).read_text(encoding="utf-8")


def run(
    component: Component, *, uninstall: bool, purge: bool, dry_run: bool, root: Path | None
) -> None:
    """Install a component or remove it, and print each step before it is carried out."""
    if purge and not uninstall:
        raise Failed(ExitStatus.USAGE, "--purge goes with --uninstall")
    if root is None and not dry_run and os.geteuid() != 0:
        raise Failed(ExitStatus.REFUSED, "only root can install: use sudo, or --dry-run to look")
    below = Path("/") if root is None else root.absolute()
    if not below.is_dir():
        raise Failed(ExitStatus.USAGE, f"--root: {below} is not a folder")
    shipped = {name: packaged(name) for name in (*component.units, component.settings)}
    try:
        around = _surroundings(component, shipped, below)
        if uninstall:
            steps = installation.uninstall(component, shipped, around, purge=purge)
        else:
            steps = installation.install(component, shipped, _environment(below), around)
        for step in steps:
            output.say(str(step))
            if not dry_run:
                _carry_out(step, below)
    except installation.Refused as refused:
        raise Failed(ExitStatus.REFUSED, str(refused)) from refused
    except OSError as error:
        message = f"cannot change {error.filename}: {error.strerror}; correct it and repeat"
        raise Failed(ExitStatus.USAGE, message) from error
    if dry_run:
        output.note("This was a dry run: nothing was changed.")
    elif not uninstall:
        service = component.units[0]
        output.note(f"Next: change {installation.SETTINGS / component.settings}, then")
        output.note(f"  systemctl enable --now {service.removesuffix('.service')}")


def _surroundings(component: Component, shipped: dict[str, str], root: Path) -> Surroundings:
    units = {name: _below(root, installation.UNITS / name) for name in component.units}
    paths = installation.paths_of(component, shipped)
    return Surroundings(
        units={name: path.read_text() for name, path in units.items() if path.is_file()},
        paths=frozenset(path for path in paths if os.path.lexists(_below(root, path))),
        users=_users(root),
        booted=root == Path("/") and BOOTED.is_dir(),
    )


def _users(root: Path) -> dict[str, str]:
    """Return the comment of each user.

    The file comes last: while a unit runs, systemd tells of its user, but not the comment.
    """
    users: dict[str, str] = {}
    if root == Path("/"):
        import pwd  # POSIX only

        users = {user.pw_name: user.pw_gecos for user in pwd.getpwall()}
    file = root / "etc" / "passwd"
    lines = file.read_text().splitlines() if file.is_file() else []
    rows = (line.split(":") for line in lines if line.count(":") == 6)
    return users | {row[0]: row[4] for row in rows}


def _environment(root: Path) -> Environment:
    """Return the environment of this process, with the paths that it has below the root."""
    if isinstance(forewarn.__loader__, zipimport.zipimporter):  # the one file
        program = Path(sys.executable)
        folders = [program.parent]
    else:
        program = Path(sysconfig.get_path("scripts"), "forewarn")
        package = Path(forewarn.__file__).parent
        folders = [Path(sys.prefix), Path(sys.base_prefix).resolve(), package]
    if not os.access(program, os.X_OK):
        message = f"this Python has no program {program}: install Forewarn by pip, pipx or uv"
        raise Failed(ExitStatus.USAGE, message)
    way = {each for folder in folders for each in (folder, *folder.parents)}
    way -= {root, *root.parents}  # how this machine reaches its root is not how that one does
    closed = sorted(each for each in way if not each.stat().st_mode & stat.S_IXOTH)
    return Environment(
        program=_seen_from(root, program),
        folders=tuple(_seen_from(root, folder) for folder in folders),
        closed=tuple(_seen_from(root, folder) for folder in closed),
    )


def _seen_from(root: Path, path: Path) -> str:
    return f"/{path.relative_to(root)}" if path.is_relative_to(root) else str(path)


def _below(root: Path, path: PurePosixPath) -> Path:
    return root / path.relative_to("/")


def _carry_out(step: InstallStep, root: Path) -> None:
    target, place = step.target, root / step.target.lstrip("/")
    match step.kind:
        case StepKind.MAKE_FOLDER:
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(0o755)
        case StepKind.WRITE_FILE:
            new = place.with_name(f".{place.name}.new")
            new.write_text(step.text, encoding="utf-8")
            new.chmod(0o644)
            new.replace(place)
        case StepKind.REMOVE_PATH:
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            else:
                place.unlink(missing_ok=True)
        case StepKind.REMOVE_EMPTY:
            if not any(place.iterdir()):
                place.rmdir()
        case StepKind.ADD_USER:
            user = ("--system", "--user-group", "--no-create-home", "--home-dir", "/")
            about = ("--shell", NO_LOGIN, "--comment", installation.USER_COMMENT)
            _program("useradd", *_prefix("--prefix", root), *user, *about, target)
        case StepKind.REMOVE_USER:
            _program("userdel", *_prefix("--prefix", root), target)
            groups = (root / "etc" / "group").read_text()
            if re.search(rf"(?m)^{target}:", groups):  # /etc/login.defs may tell userdel to keep it
                _program("groupdel", *_prefix("--prefix", root), target)
        case StepKind.SYSTEMCTL:
            _program("systemctl", *_prefix("--root", root), *target.split())
        case StepKind.KEEP:
            pass


def _prefix(name: str, root: Path) -> Sequence[str]:
    return () if root == Path("/") else (name, str(root))


def _program(*argv: str) -> None:
    path = shutil.which(argv[0], path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if path is None:
        raise Failed(ExitStatus.USAGE, f"{argv[0]} is not installed")
    argv = (path, *argv[1:])
    ran = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if ran.returncode:
        said = " ".join(ran.stderr.split()) or f"it ended with {ran.returncode}"
        raise Failed(ExitStatus.USAGE, f"{' '.join(argv)}: {said}")
