"""What it changes on a machine to install a process as a systemd service, as a list of steps.

It decides and does nothing: `installer` looks at the machine and carries the steps out, or only
shows them. The packaged unit is the one source: its `User=` and `StateDirectory=` say which user is
added and which state is purged, and its restrictions say from where the program can run.
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final, NamedTuple

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


def install(
    component: Component,
    shipped: Mapping[str, str],
    environment: Environment,
    surroundings: Surroundings,
) -> list[InstallStep]:
    """Return the steps that install a component.

    Args:
        component: What to install.
        shipped: The text of its units and of its sample settings, by their names.
        environment: What the unit will run.
        surroundings: What there is already.

    Raises:
        Refused: The unit could not run the program, or a unit is somebody's own.
    """
    service = shipped[component.units[0]]
    _judge(service, environment)
    _judge_units(component, surroundings)
    steps: list[InstallStep] = []
    user = _value(service, "User")
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


def uninstall(
    component: Component,
    shipped: Mapping[str, str],
    surroundings: Surroundings,
    *,
    purge: bool,
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


def _judge(service: str, environment: Environment) -> None:
    """Refuse an environment that a process under this unit cannot read."""
    hidden: Sequence[str] = TEMPORARY if _value(service, "PrivateTmp") == "yes" else ()
    if _value(service, "ProtectHome") == "yes":
        hidden = (*hidden, *HOMES)
    for folder in (environment.program, *environment.folders):
        for above in hidden:
            if PurePosixPath(folder).is_relative_to(above):
                raise Refused(
                    f"the unit cannot read {folder}: nothing below {above} is visible to it. "
                    "Install Forewarn where every user can read it, such as /opt/forewarn"
                )
    if _value(service, "User") and environment.closed:
        raise Refused(
            f"the user {_value(service, 'User')} cannot enter {environment.closed[0]}, which the "
            "program needs. Install Forewarn where every user can read it, such as /opt/forewarn"
        )


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
