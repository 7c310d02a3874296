"""The agent's settings: one TOML file and a folder of drop-ins, judged whole before anything runs.

Every setting is optional; what a key means and why its default is what it is stands with its field
here (a rule's in `rules`, an action's in `steps`) and, for people, in
docs/reference/agent-settings.md.

The drop-ins are the `*.toml` of the folder that is named like the file (`agent.d` beside
`agent.toml`), in the order of their names; later wins. A single setting of a later file replaces
the earlier one. A rule of a later file replaces the rule of its name, in its place; other rules of
a later file are tried before those of earlier ones, so that the first match is the latest word.
"""

import sys
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from forewarn import configuration
from forewarn.agent import steps
from forewarn.agent.rules import Rule
from forewarn.configuration import Log, SettingsError

ENVIRONMENT_PREFIX: Final = "FOREWARN_AGENT_SET_"
CONFIG_VARIABLE: Final = "FOREWARN_AGENT_CONFIG"
CONFIG_NAME: Final = "agent.toml"
DROP_INS: Final = ".d"
"""What the folder of drop-ins has where the file has `.toml`."""

STATE_NAME: Final = "agent"
"""The agent's folder within the state folder, which it may share with the service."""

OFF: Final = "off"
"""The `listen` of an agent without a status port."""

MAX_DROP_INS: Final = 100
MAX_RULES: Final = 1000
"""More of either are no settings that anybody could overlook."""

MACHINE_PLACE: Final = "{machine}"
"""Where a pattern of peers has the machine's name."""


class Client(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whom the agent asks for events, and as whom."""

    endpoint: str = ""
    """The metadata endpoint, as `http://169.254.169.254`. `""`, the default, lets it be
    discovered."""
    machine: str = ""
    """This machine's name, as events have it. `""`, the default, asks the endpoint."""


class Status(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the agent shows of itself by HTTP: `/healthz`, `/readyz`, `/status`, `/metrics`."""

    listen: str = "127.0.0.1:8171"
    """An address of this machine and a port. By default on loopback, which no other machine
    reaches: give one that the balancer and the peers reach where they ask. `"off"` is none."""


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the agent remembers over its own end and over a boot."""

    folder: str = ""
    """The journal's folder, on a disk that survives a boot. `""` is `agent` in the state folder. A
    relative path starts at the settings file's folder."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of the agent."""

    margin_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 5.0
    """How long before NotBefore everything must be prepared: what is not done then is cut. 5 s are
    the sixth part of the shortest notice, a Preempt's."""
    peers: str | tuple[str, ...] = ()
    """The agents of the other machines of an event: a pattern such as `http://{machine}:8171`, or
    a list of addresses. `[]`, the default, is none: events of several machines are not approved
    where their agents have to agree."""
    client: Client = Client()
    status: Status = Status()
    state: State = State()
    log: Log = Log()
    rule: Annotated[tuple[Rule, ...], msgspec.Meta(max_length=MAX_RULES)] = ()
    """The rules, in their order; the first that matches takes the event."""


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """Settings, and where they come from."""

    settings: Settings
    files: tuple[Path, ...]
    """The files that were read, in their order."""
    origins: Mapping[str, Path]
    """The file of each rule, by the rule's name."""


def load(
    path: Path | None, environment: Mapping[str, str], *, platform: str = sys.platform
) -> Loaded:
    """Return the settings of the files and the environment, with every place made absolute.

    Args:
        path: The file; None for the one that `configuration.find` finds, if there is one.
        environment: The process's variables.
        platform: As `sys.platform` names it; some actions need POSIX.

    Raises:
        SettingsError: Something in them is wrong; the message names the file and the path in it.
    """
    chosen = path or configuration.find(environment, CONFIG_VARIABLE, CONFIG_NAME)
    files = (chosen, *_drop_ins(chosen)) if chosen is not None else ()
    tree: dict[str, Any] = {}
    rules: list[dict[str, Any]] = []
    origins: dict[str, Path] = {}
    for file in files:
        own = configuration.read(file)
        _judge(own, str(file), platform)
        origins |= {rule["name"]: file for rule in own.get("rule", [])}
        rules = _joined(own.pop("rule", []), rules)
        tree = _merged(tree, own)
    tree["rule"] = rules
    overridden = configuration.override(tree, environment, ENVIRONMENT_PREFIX, Settings)
    sources = [str(file) for file in files] + ["the environment"] * overridden
    settings = _judge(tree, " and ".join(sources), platform)
    base = chosen.resolve().parent if chosen else Path.cwd()
    return Loaded(
        settings=_placed(settings, base, environment),
        files=files,
        origins={rule.name: origins[rule.name] for rule in settings.rule if rule.name in origins},
    )


def _drop_ins(path: Path) -> tuple[Path, ...]:
    folder = path.with_suffix(DROP_INS)
    found = tuple(sorted(folder.glob("*.toml"))) if folder.is_dir() else ()
    if len(found) > MAX_DROP_INS:
        message = f"{folder} holds {len(found)} files, and {MAX_DROP_INS} are read at most"
        raise SettingsError(message)
    return found


def _merged(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Return both trees, and the later one's word where they speak of the same."""
    merged = dict(earlier)
    for key, value in later.items():
        before = merged.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            merged[key] = _merged(before, value)
        else:
            merged[key] = value
    return merged


def _joined(later: list[dict[str, Any]], earlier: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return both files' rules, the later one's first or in the place of their namesakes."""
    by_name = {rule["name"]: rule for rule in later}
    known = {rule["name"] for rule in earlier}
    new = [rule for rule in later if rule["name"] not in known]
    return new + [by_name.get(rule["name"], rule) for rule in earlier]


def _judge(tree: Mapping[str, Any], where: str, platform: str) -> Settings:
    """Return one file's settings, or refuse them by that file's name."""
    configuration.judge_keys(tree, Settings, where)
    settings = configuration.convert(tree, Settings, where)
    fault = _fault(settings, platform)
    if fault:
        message = f"{where}: at {fault}"
        raise SettingsError(message)
    return settings


def _fault(settings: Settings, platform: str) -> str:
    """Return what no type tells is wrong, after its path; `""` if nothing is."""
    if settings.status.listen != OFF:
        try:
            configuration.split_address(settings.status.listen, "status.listen")
        except SettingsError as error:
            return str(error).removeprefix("at ")
    names: set[str] = set()
    for number, rule in enumerate(settings.rule):
        at = f"rule[{number}]"
        if rule.name in names:
            return f"{at}.name: {rule.name!r} is the name of another rule of this file"
        names.add(rule.name)
        fault = _rule_fault(rule, platform)
        if fault:
            return at + fault
    return _peers_fault(settings.peers)


def _rule_fault(rule: Rule, platform: str) -> str:
    """Return what is wrong with one rule, as the rest of its path and the fault."""
    least, most = rule.match.min_notice_seconds, rule.match.max_notice_seconds
    if least is not None and most is not None and least >= most:
        return ".match: no event has more than min_notice_seconds and less than max_notice_seconds"
    if rule.match.machine != "mine" and rule.approve in {"when-prepared", "when-all-ready"}:
        return (
            f".approve: {rule.approve!r} is decided by an event's own machines, and this rule "
            f"takes events of {rule.match.machine}: give 'never' or 'at-once'"
        )
    for number, step in enumerate(rule.prepare):
        at = f".prepare[{number}]"
        fault = steps.fault(step, platform)
        if fault:
            return at + fault
        if rule.approve == "at-once" and not step.terms.tells:
            return (
                f"{at}: approve = 'at-once' waits for nothing, so only log and notify may stand "
                "beside it; 'when-prepared' waits"
            )
    return ""


def _peers_fault(peers: str | tuple[str, ...]) -> str:
    if isinstance(peers, str) and MACHINE_PLACE not in peers:
        return f"peers: {peers!r} lacks {MACHINE_PLACE}: give a pattern with it, or a list"
    for number, peer in enumerate((peers,) if isinstance(peers, str) else peers):
        at = "peers" if isinstance(peers, str) else f"peers[{number}]"
        try:
            parts = urllib.parse.urlsplit(peer.replace(MACHINE_PLACE, "machine"))
            sound = parts.scheme == "http" and parts.hostname and (parts.port or 80)
        except ValueError:
            sound = False
        if not sound or "{" in peer.replace(MACHINE_PLACE, ""):
            return f"{at}: {peer!r} is no agent's address: give one such as 'http://10.0.0.5:8171'"
    return ""


def _placed(settings: Settings, base: Path, environment: Mapping[str, str]) -> Settings:
    """Return the settings with the journal's folder made absolute."""
    written = settings.state.folder
    folder = (
        base / Path(written).expanduser()
        if written
        else configuration.state_folder(environment) / STATE_NAME
    )
    return msgspec.structs.replace(settings, state=State(folder=str(folder)))
