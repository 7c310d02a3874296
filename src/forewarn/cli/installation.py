"""Installs a process as a systemd service, or removes it: decides on steps, and carries them out.

The packaged unit is the one source: its `User=` and `StateDirectory=` say which user is added and
which state is purged, and its restrictions say from where the program can run. The units, sample
settings, alert rules and the dashboard are in the wheel, in the folder `forewarn/packaging`; in a
checkout they are in `packaging`.
"""

import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import zipimport
from collections.abc import Mapping, Sequence
from enum import StrEnum
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

import forewarn
from forewarn.cli import output
from forewarn.cli.exits import ExitStatus, Failed

# Decides: what there is goes in, steps come out.

UNITS: Final = PurePosixPath("/etc/systemd/system")
SETTINGS: Final = PurePosixPath("/etc/forewarn")
STATE: Final = PurePosixPath("/var/lib")

MARK: Final = "# Written by 'forewarn {command}', which replaces this file. Changes belong into a"
"""The first line of a unit. A unit without it is somebody's own: it is not replaced or removed."""

USER_COMMENT: Final = "Forewarn, added by its installer"
"""Of a user that was added here. Another user of that name is not removed."""

HOMES: Final = ("/home", "/root", "/run/user")
"""What `ProtectHome=yes` hides."""

TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108 - named, not written to
"""What `PrivateTmp=yes` hides."""

_ELSEWHERE: Final = "Install Forewarn where every user can read it, such as /opt/forewarn"


class Component(NamedTuple):
    """What is installed by one command."""

    command: str
    """As it is typed after `forewarn`."""
    units: tuple[str, ...]
    """The first is the service, by which the others are named."""
    settings: str
    """The name of the settings file; the folder of its drop-ins is named alike."""


SERVICE: Final = Component(
    "serve --install", ("forewarn.service", "forewarn.socket"), "forewarn.toml"
)
AGENT: Final = Component("agent install", ("forewarn-agent.service",), "agent.toml")
RELAY: Final = Component(
    "relay install", ("forewarn-relay.service", "forewarn-relay.socket"), "relay.toml"
)


class Environment(NamedTuple):
    """The Python environment that the unit will run."""

    program: str
    """The full path of its `forewarn`."""
    folders: tuple[str, ...]
    """What the program reads: the environment, the Python that it rests on, the package."""
    closed: tuple[str, ...] = ()
    """Those folders on the way there that users other than their owner cannot enter."""


class Surroundings(NamedTuple):
    """What there is already on the machine."""

    units: Mapping[str, str] = {}
    """The text of each unit of the component that is in `UNITS`, by its name."""
    paths: frozenset[PurePosixPath] = frozenset()
    """Those of `paths_of` that exist."""
    users: Mapping[str, str] = {}
    """The comment of each user."""
    booted: bool = False
    """Whether systemd runs the machine, and is to be told."""


class Refused(Exception):  # noqa: N818 - an answer to the person who asked
    """The installation is not possible as asked for. The message says why, and what to do."""


class StepKind(StrEnum):
    """What a step does, in the words that a person reads before its target."""

    MAKE_FOLDER = "make the folder"
    """One that everybody may read."""
    WRITE_FILE = "write"
    """A file that everybody may read; one that exists is replaced."""
    KEEP = "keep"
    """Leave as it is what somebody may have changed."""
    ADD_USER = "add the system user"
    """And a group of the same name."""
    REMOVE_USER = "remove the system user"
    REMOVE_PATH = "remove"
    """A file, a link, or a folder with all that is in it."""
    REMOVE_EMPTY = "if it is empty, remove"
    """A folder."""
    SYSTEMCTL = "run systemctl"


class InstallStep(NamedTuple):
    """One step of an installation."""

    kind: StepKind
    target: str
    """The path, the user, or the arguments of systemctl."""
    text: str = ""
    """The text of the file."""

    def __str__(self) -> str:
        """Return it as a person reads it."""
        return f"{self.kind} {self.target}"


def install_steps(
    component: Component,
    shipped: Mapping[str, str],
    environment: Environment,
    surroundings: Surroundings,
) -> list[InstallStep]:
    """Return the steps that install a component.

    `shipped` is the text of its units and of its sample settings, by their names.

    Raises:
        Refused: A unit is somebody's own.
    """
    _judge_units(component, surroundings)
    steps: list[InstallStep] = []
    user = _value(shipped[component.units[0]], "User")
    if user and user not in surroundings.users:
        steps.append(InstallStep(StepKind.ADD_USER, user))
    steps += [
        InstallStep(StepKind.MAKE_FOLDER, str(path))
        for path in (SETTINGS, UNITS)
        if path not in surroundings.paths
    ]
    settings = SETTINGS / component.settings
    if settings in surroundings.paths:
        steps.append(InstallStep(StepKind.KEEP, str(settings)))
    else:
        steps.append(InstallStep(StepKind.WRITE_FILE, str(settings), shipped[component.settings]))
    written = []
    for name in component.units:
        text = _unit(component, name, shipped[name], environment.program)
        if surroundings.units.get(name) != text:
            written.append(InstallStep(StepKind.WRITE_FILE, str(UNITS / name), text))
        else:
            steps.append(InstallStep(StepKind.KEEP, str(UNITS / name)))
    steps += written
    if written and surroundings.booted:
        steps.append(InstallStep(StepKind.SYSTEMCTL, "daemon-reload"))
    return steps


def uninstall_steps(
    component: Component, shipped: Mapping[str, str], surroundings: Surroundings, *, purge: bool
) -> list[InstallStep]:
    """Return the steps that stop a component and remove it.

    Settings, drop-ins, state and user stay unless they are purged, too.

    Raises:
        Refused: A unit is somebody's own.
    """
    _judge_units(component, surroundings)
    steps: list[InstallStep] = []
    there = [name for name in component.units if name in surroundings.units]
    if there:
        now = ["--now"] * surroundings.booted
        # Sockets first: a connection would start the service again.
        steps.append(InstallStep(StepKind.SYSTEMCTL, " ".join(["disable", *now, *reversed(there)])))
        steps += [InstallStep(StepKind.REMOVE_PATH, str(UNITS / name)) for name in there]
    what = StepKind.REMOVE_PATH if purge else StepKind.KEEP
    own = _own_paths(component, shipped)
    steps += [InstallStep(what, str(path)) for path in own if path in surroundings.paths]
    user = _value(shipped[component.units[0]], "User")
    if purge and SETTINGS in surroundings.paths:
        steps.append(InstallStep(StepKind.REMOVE_EMPTY, str(SETTINGS)))
    if there and surroundings.booted:
        steps.append(InstallStep(StepKind.SYSTEMCTL, "daemon-reload"))
    if purge and user and surroundings.users.get(user) == USER_COMMENT:
        steps.append(InstallStep(StepKind.REMOVE_USER, user))
    return steps


def paths_of(component: Component, shipped: Mapping[str, str]) -> list[PurePosixPath]:
    """Return the paths that matter to the steps of a component, if they exist."""
    return [SETTINGS, UNITS, *_own_paths(component, shipped)]


def _own_paths(component: Component, shipped: Mapping[str, str]) -> list[PurePosixPath]:
    """Return what belongs to a component alone, and what a person or the service wrote there."""
    settings = SETTINGS / component.settings
    drop_ins = [UNITS / f"{name}.d" for name in component.units]
    state = _value(shipped[component.units[0]], "StateDirectory")
    # With DynamicUser= systemd keeps the state below `private`, and a link to it.
    return [
        settings,
        settings.with_suffix(".d"),
        *drop_ins,
        STATE / state,
        STATE / "private" / state,
    ]


def _judge_units(component: Component, surroundings: Surroundings) -> None:
    mark = MARK.format(command=component.command)
    for name, text in surroundings.units.items():
        if not text.startswith(mark):
            raise Refused(
                f"{UNITS / name} was not written by 'forewarn {component.command}': move it away "
                "first; what you changed in it belongs into a drop-in"
            )


def obstacle(component: Component, shipped: Mapping[str, str], environment: Environment) -> str:
    """Return why the unit could not run the program; `""` if it can."""
    service = shipped[component.units[0]]
    hidden: Sequence[str] = TEMPORARY if _value(service, "PrivateTmp") == "yes" else ()
    if _value(service, "ProtectHome") == "yes":
        hidden = (*hidden, *HOMES)
    for folder in (environment.program, *environment.folders):
        for above in hidden:
            if PurePosixPath(folder).is_relative_to(above):
                return f"the unit cannot read {folder}: {above} is hidden from it. {_ELSEWHERE}"
    user = _value(service, "User")
    if user and environment.closed:
        closed = environment.closed[0]
        return f"the user {user} cannot enter {closed}, which the program needs. {_ELSEWHERE}"
    return ""


def _unit(component: Component, name: str, text: str, program: str) -> str:
    """Return a unit as it is written: with the mark, and with the program's path."""
    head = f"{MARK.format(command=component.command)}\n# drop-in: systemctl edit {name}\n"
    return head + re.sub(r"(?m)^ExecStart=\S+", lambda _: f"ExecStart={_quoted(program)}", text)


def _quoted(path: str) -> str:
    """Return a path as systemd.service(5) reads it at the head of a command."""
    plain = path.replace("%", "%%")
    if re.fullmatch(r"[\w%@+,./-]+", plain):
        return plain
    escaped = plain.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _value(unit: str, key: str) -> str:
    found = re.search(rf"(?m)^{key}=(.*)$", unit)
    return found[1] if found else ""


# Looks at the machine, and carries the steps out.

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
    why = ""
    shipped = {name: packaged(name) for name in (*component.units, component.settings)}
    try:
        around = _surroundings(component, shipped, below)
        if uninstall:
            steps = uninstall_steps(component, shipped, around, purge=purge)
        else:
            environment = _environment(below)
            why = obstacle(component, shipped, environment)
            if why and not dry_run:
                raise Failed(ExitStatus.REFUSED, why)
            steps = install_steps(component, shipped, environment, around)
        for step in steps:
            output.say(str(step))
            if not dry_run:
                _carry_out(step, below)
    except Refused as refused:
        raise Failed(ExitStatus.REFUSED, str(refused)) from refused
    except OSError as error:
        message = f"cannot change {error.filename}: {error.strerror}; correct it and repeat"
        raise Failed(ExitStatus.USAGE, message) from error
    if dry_run:
        output.note("This was a dry run: nothing was changed.")
        if why:
            output.note(f"refused without --dry-run: {why}")
    elif not uninstall:
        service = component.units[0]
        output.note(f"Next: change {SETTINGS / component.settings}, then")
        output.note(f"  systemctl enable --now {service.removesuffix('.service')}")


def _surroundings(component: Component, shipped: dict[str, str], root: Path) -> Surroundings:
    units = {name: root / str(UNITS / name).lstrip("/") for name in component.units}
    paths = paths_of(component, shipped)
    return Surroundings(
        units={name: path.read_text() for name, path in units.items() if path.is_file()},
        paths=frozenset(path for path in paths if os.path.lexists(root / str(path).lstrip("/"))),
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
            about = ("--shell", NO_LOGIN, "--comment", USER_COMMENT)
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
