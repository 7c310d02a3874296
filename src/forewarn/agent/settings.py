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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from forewarn import configuration
from forewarn.agent import steps
from forewarn.agent.rules import Rule
from forewarn.agent.steps import Step
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
        SettingsError: Something in them is wrong; it names each mistake's file and the path in it.
    """
    chosen = path or configuration.find(environment, CONFIG_VARIABLE, CONFIG_NAME)
    files = (chosen, *_drop_ins(chosen)) if chosen is not None else ()
    verdicts, wrong = _verdicts(platform), list[str]()
    trees: dict[Path, dict[str, Any]] = {}
    for file in files:
        try:
            trees[file] = configuration.read(file)
        except SettingsError as error:
            wrong += error.mistakes
            continue
        found = configuration.mistakes(trees[file], Settings, verdicts, _mistakes_across)
        wrong += [f"{file}: {mistake.text}" for mistake in found]
    overriding, faults = configuration.override(
        environment, ENVIRONMENT_PREFIX, Settings, verdicts, _mistakes_across
    )
    wrong += faults
    if wrong:
        raise SettingsError(*wrong)
    tree: dict[str, Any] = {}
    rules: list[dict[str, Any]] = []
    origins: dict[str, Path] = {}
    for file, own in trees.items():
        origins |= {rule["name"]: file for rule in own.get("rule", [])}
        rules = _joined(own.pop("rule", []), rules)
        tree = configuration.merged(tree, own)
    tree = configuration.merged(tree | {"rule": rules}, overriding)
    sources = " and ".join([str(file) for file in files] + ["the environment"] * bool(overriding))
    together = configuration.mistakes(tree, Settings, verdicts, _mistakes_across)
    if together:
        raise SettingsError(*(f"{sources}: {mistake.text}" for mistake in together))
    settings = msgspec.convert(tree, Settings)
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


def _joined(later: list[dict[str, Any]], earlier: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return both files' rules, the later one's first or in the place of their namesakes."""
    by_name = {rule["name"]: rule for rule in later}
    known = {rule["name"] for rule in earlier}
    new = [rule for rule in later if rule["name"] not in known]
    return new + [by_name.get(rule["name"], rule) for rule in earlier]


def _verdicts(platform: str) -> configuration.Verdicts:
    """Return what no type tells is wrong with a table, by its kind."""

    def of_step(step: Step, at: str) -> Iterator[str]:
        fault = steps.fault(step, platform)
        if fault:
            yield f"at {at}{fault}"

    return {Status: _mistakes_of_status, Rule: _mistakes_of_rule, Step: of_step}


def _mistakes_of_status(status: Status, at: str) -> Iterator[str]:
    if status.listen != OFF:
        try:
            configuration.split_address(status.listen, f"{at}.listen")
        except SettingsError as error:
            yield str(error)


def _mistakes_of_rule(rule: Rule, at: str) -> Iterator[str]:
    least, most = rule.match.min_notice_seconds, rule.match.max_notice_seconds
    if least is not None and most is not None and least >= most:
        yield (
            f"at {at}.match: no event has more than min_notice_seconds and less than "
            "max_notice_seconds"
        )
    if rule.match.machine != "mine" and rule.approve in {"when-prepared", "when-all-ready"}:
        yield (
            f"at {at}.approve: {rule.approve!r} is decided by an event's own machines, and this "
            f"rule takes events of {rule.match.machine}: give 'never' or 'at-once'"
        )
    for number, step in enumerate(rule.prepare):
        if rule.approve == "at-once" and not step.terms.tells:
            yield (
                f"at {at}.prepare[{number}]: approve = 'at-once' waits for nothing, so only log "
                "and notify may stand beside it; 'when-prepared' waits"
            )


def _mistakes_across(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with names and peers, as far as they are what they should be."""
    peers = tree.get("peers")
    if isinstance(peers, str) or (
        isinstance(peers, list) and all(isinstance(peer, str) for peer in peers)
    ):
        yield from _mistakes_of_peers(peers)
    names: set[str] = set()
    rules = tree.get("rule", ())
    for number, rule in enumerate(rules if isinstance(rules, list) else ()):
        name = rule.get("name") if isinstance(rule, dict) else None
        if isinstance(name, str) and name in names:
            yield f"at rule[{number}].name: {name!r} is the name of another rule of this file"
        elif isinstance(name, str):
            names.add(name)


def _mistakes_of_peers(peers: str | Sequence[str]) -> Iterator[str]:
    if isinstance(peers, str) and MACHINE_PLACE not in peers:
        yield f"at peers: {peers!r} lacks {MACHINE_PLACE}: give a pattern with it, or a list"
        return
    for number, peer in enumerate((peers,) if isinstance(peers, str) else peers):
        at = "peers" if isinstance(peers, str) else f"peers[{number}]"
        try:
            parts = urllib.parse.urlsplit(peer.replace(MACHINE_PLACE, "machine"))
            sound = parts.scheme == "http" and parts.hostname and (parts.port or 80)
        except ValueError:
            sound = False
        if not sound or "{" in peer.replace(MACHINE_PLACE, ""):
            yield (
                f"at {at}: {peer!r} is no agent's address: give one such as 'http://10.0.0.5:8171'"
            )


def _placed(settings: Settings, base: Path, environment: Mapping[str, str]) -> Settings:
    """Return the settings with the journal's folder made absolute."""
    written = settings.state.folder
    folder = (
        base / Path(written).expanduser()
        if written
        else configuration.state_folder(environment) / STATE_NAME
    )
    return msgspec.structs.replace(settings, state=State(folder=str(folder)))
