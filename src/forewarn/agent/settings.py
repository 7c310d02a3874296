"""The agent's settings: one TOML file and a folder of drop-ins, checked before anything runs.

docs/reference/agent-settings.md is made of the docstrings of the fields here and in `rules`.
Hidden files beside the drop-ins belong to editors and tools, and are passed over.
In the order of their names a later drop-in wins: its settings and its rules replace earlier ones of
the same name; its other rules are tried first, so that the first match is the latest word.
"""

import sys
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from forewarn import settings
from forewarn.agent import rules
from forewarn.agent.rules import Rule
from forewarn.settings import OFF, FieldError, FileName, Log, SettingsError

ENVIRONMENT_PREFIX: Final = "FOREWARN_AGENT_SET_"
CONFIG_VARIABLE: Final = "FOREWARN_AGENT_CONFIG"
CONFIG_NAME: Final = "agent.toml"
DROP_INS: Final = ".d"
"""The suffix of the folder of drop-ins, in the place of `.toml`."""

STATE_NAME: Final = "agent"
"""The agent's folder within the state folder, which it may share with the service."""

MAX_DROP_INS: Final = 100
MAX_RULES: Final = 1000
"""More of either are no settings that anybody could overlook."""

MACHINE_PLACE: Final = "{machine}"
"""The place of the machine's name in a pattern of peers."""


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The endpoint, and this machine's name there."""

    endpoint: str = ""
    """The metadata endpoint, such as `http://169.254.169.254`. `""`, the default: the agent
    discovers it."""
    machine: str = ""
    """This machine's name in events. `""`, the default: the agent asks the endpoint."""


class StatusSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agent's status by HTTP: `/healthz`, `/readyz`, `/status`, `/metrics`."""

    listen: str = "127.0.0.1:8171"
    """An IP address of this machine and a port. The default is on loopback, which no other machine
    reaches: give an address that the balancer and the peers reach. Requests from this machine's own
    address see the output of programs, which may hold secrets: any local user can send them, and so
    can anybody through a proxy or a tunnel on this machine. An address that the machine gets later
    works from then on (on Linux). `"off"`: no port."""

    def __post_init__(self) -> None:
        """Refuse an invalid address."""
        if self.listen != OFF:
            settings.check_address("listen", self.listen)


class StateSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agent's memory over its own end and over a boot."""

    folder: FileName = ""
    """The journal's folder, on a disk that survives a boot. `""` is `agent` in the state folder. A
    relative path starts at the folder of the settings file."""


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of the agent."""

    margin_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 5.0
    """The time before NotBefore by which everything must be prepared: an action that is not done by
    then is cut. 5 s is a sixth of the shortest notice, which a Preempt has."""
    stop_seconds: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 60.0
    """The time that running actions have after SIGTERM; then they are stopped, within 15 s more. An
    action that was stopped so is done again after the next start if it is `repeatable`. The default
    and the unit's TimeoutStopSec (90 s) end before a hypervisor takes the power away: Forewarn's
    libvirt connector does so after 120 s."""
    peers: str | tuple[str, ...] = ()
    """The agents of an event's other machines: a pattern such as `http://{machine}:8171`, or a list
    of addresses. Without peers, the default, an event of several machines is not approved where
    their agents must agree."""
    client: ClientSettings = ClientSettings()
    status: StatusSettings = StatusSettings()
    state: StateSettings = StateSettings()
    log: Log = Log()
    rule: Annotated[tuple[Rule, ...], msgspec.Meta(max_length=MAX_RULES)] = ()
    """The rules, in their order; the first that matches takes the event."""

    def __post_init__(self) -> None:
        """Refuse peers that are not agents' addresses."""
        peers = self.peers
        if isinstance(peers, str) and MACHINE_PLACE not in peers:
            message = f"{peers!r} lacks {MACHINE_PLACE}: write a pattern with it, or a list"
            raise FieldError("peers", message)
        for peer in (peers,) if isinstance(peers, str) else peers:
            try:
                parts = urllib.parse.urlsplit(peer.replace(MACHINE_PLACE, "machine"))
                sound = parts.scheme == "http" and parts.hostname and (parts.port or 80)
            except ValueError:
                sound = False
            if not sound or "{" in peer.replace(MACHINE_PLACE, ""):
                message = f"invalid address {peer!r}: expected one such as 'http://10.0.0.5:8171'"
                raise FieldError("peers", message)


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """Settings, and their files."""

    settings: AgentSettings
    files: tuple[Path, ...]
    origins: Mapping[str, Path]
    """The file of each rule, by the rule's name."""


def load(
    path: Path | None, environment: Mapping[str, str], *, platform: str = sys.platform
) -> Loaded:
    """Return the settings of the files and the environment, with every place made absolute.

    A path of None is the file that `settings.find` finds, if there is one. `platform` is as in
    `sys.platform`: some actions need POSIX. A SettingsError names the file and the place in it.
    """
    chosen = path or settings.find(environment, CONFIG_VARIABLE, CONFIG_NAME)
    files = (chosen, *_drop_ins(chosen)) if chosen is not None else ()
    sources: list[settings.Source] = [(str(file), settings.read(file)) for file in files]
    tree: dict[str, Any] = {}
    origins: dict[str, Path] = {}
    for file, (_, own) in zip(files, sources, strict=True):
        names = list(filter(None, map(_name, _rules(own))))
        if twice := [name for name in names if names.count(name) > 1]:
            raise SettingsError(f"{file}: two rules are named {twice[0]!r}: give each its own name")
        origins |= dict.fromkeys(names, file)
        tree = settings.merged(tree, own) | _joined(own, tree)
    for variable, own in settings.overrides(environment, ENVIRONMENT_PREFIX, AgentSettings):
        sources.append((variable, own))
        tree = settings.merged(tree, own)
    loaded = settings.convert(tree, AgentSettings, sources)
    for rule in loaded.rule:
        for number, action in enumerate(rule.prepare):
            if platform == "win32" and (reason := rules.needs_posix(action)):
                place = f"rule {rule.name!r}: prepare[{number}].{action.kind}"
                blamed = origins.get(rule.name) or "the environment"
                raise SettingsError(f"{blamed}: {place}: {reason}")
    loaded = settings.placed(loaded, chosen.resolve().parent if chosen else Path.cwd())
    folder = loaded.state.folder or str(settings.state_folder(environment) / STATE_NAME)
    return Loaded(
        settings=msgspec.structs.replace(loaded, state=StateSettings(folder=folder)),
        files=files,
        origins={rule.name: origins[rule.name] for rule in loaded.rule if rule.name in origins},
    )


def load_again(before: Loaded, environment: Mapping[str, str]) -> Loaded:
    """Return the settings as the files of `before` are now; find a file only if it had none.

    SettingsError too where the file or the folder of drop-ins is gone, as on a mount that is away:
    the rules in them must not be taken for removed.
    """
    path, *drop_ins = before.files or (None,)
    if path is not None and drop_ins and not _folder(path).is_dir():
        message = f"{_folder(path)} is gone: if its drop-ins are to go, leave the folder empty"
        raise SettingsError(message)
    return load(path, environment)


def _folder(path: Path) -> Path:
    return path.parent / f"{path.stem}{DROP_INS}"


def _drop_ins(path: Path) -> tuple[Path, ...]:
    folder = _folder(path)
    try:
        # A hidden one is what an editor or a tool has there while it writes another.
        found = tuple(
            sorted(
                each
                for each in folder.iterdir()
                if each.suffix == ".toml" and not each.name.startswith(".")
            )
        )
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        if isinstance(error, PermissionError):
            settings.read(path)  # of a folder that is closed, the file says so
        raise SettingsError(f"{folder}: cannot read the drop-ins: {error.strerror}") from error
    if len(found) > MAX_DROP_INS:
        message = f"{folder} holds {len(found)} files, and {MAX_DROP_INS} are read at most"
        raise SettingsError(message)
    return found


def _joined(later: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rules of two files: the later's first, or in the place of their namesakes."""
    if not isinstance(later.get("rule"), list):
        return {}
    by_name = {name: rule for rule in _rules(later) if (name := _name(rule))}
    known = set(map(_name, _rules(earlier))) - {None}
    new = [rule for rule in _rules(later) if _name(rule) not in known]
    kept = [by_name[name] if (name := _name(rule)) in by_name else rule for rule in _rules(earlier)]
    return {"rule": new + kept}


def _rules(tree: Mapping[str, Any]) -> list[Any]:
    rules = tree.get("rule")
    return rules if isinstance(rules, list) else []


def _name(rule: object) -> str | None:
    name = rule.get("name") if isinstance(rule, dict) else None
    return name if isinstance(name, str) else None
