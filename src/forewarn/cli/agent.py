"""`forewarn agent`: prepares a machine for maintenance, approves, and brings it back."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from forewarn.cli import output
from forewarn.cli.exits import ExitStatus, Failed, settings_are_usable
from forewarn.cli.options import (
    JsonOption,
    flag,
    option,
)
from forewarn.vocabulary import RESOURCE_TYPE, EventSource, EventType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from forewarn.agent.decider import ActionForecast
    from forewarn.agent.rules import Rule
    from forewarn.agent.settings import AgentSettings, Loaded
    from forewarn.client.event import Event

app = typer.Typer(no_args_is_help=True)

PROGRAM = "forewarn.agent"
"""The module that is the agent's process."""

ANSWER_SECONDS = 5.0
"""For a local agent's answer, which comes at once."""

MAX_ANSWER = 16 * 1024 * 1024
"""The longest answer that is read: a thousand events with a hundred actions."""

ConfigOption = Annotated[
    Path | None,
    option(
        "--config",
        "FILE",
        "The settings (TOML), with the drop-ins beside them. Default: FOREWARN_AGENT_CONFIG, "
        "the user's own agent.toml, or /etc/forewarn/agent.toml.",
    ),
]


@app.callback(short_help="Run the agent: prepare this machine, approve, bring it back.")
def _agent() -> None:
    """Run the agent: prepare this machine for maintenance, approve, and bring it back."""


@app.command()
def check(*, config: ConfigOption = None) -> None:
    """Check the settings; show which rule takes which events.

    For each type of event it lists the rules that may take it, in order.
    """
    from forewarn.agent.rules import BUILT_IN, Match

    loaded = _load(config)
    rules = loaded.settings.rule
    read = ", ".join(str(file) for file in loaded.files)
    output.say(read or "No settings file: these are the defaults.")
    for number, rule in enumerate(rules, 1):
        actions = ", ".join(step.kind for step in rule.prepare) or "nothing"
        off = "" if rule.enabled else " (not enabled)"
        origin = loaded.origins[rule.name].name
        output.say(f"{number:>3}. {rule.name}{off}: {actions}; approve {rule.approve}  ({origin})")
    output.say(f"{len(rules) + 1:>3}. {BUILT_IN.name}")
    output.say("Rules that are tried for an event of this machine:")
    own = [
        (number, rule)
        for number, rule in enumerate((*rules, BUILT_IN), 1)
        if rule.enabled and rule.match.machine != "others"
    ]
    unreached = {rule.name: None for _, rule in own}
    for kind in EventType:
        offered = []
        for number, rule in own:
            types = rule.match.types
            if types and kind not in types:
                continue
            offered.append(f"{number}. {rule.name}")
            unreached.pop(rule.name, None)
            if rule.match == Match(types=types, machine=rule.match.machine):
                break  # it takes every one
        output.say(f"  {kind.value:<10} {'; then '.join(offered)}")
    unreached.pop(BUILT_IN.name, None)
    for name in unreached:
        output.note(f"note: rule {name!r} is never reached: earlier rules take all of its events")
    for warning in _warnings(loaded):
        output.note(f"note: {warning}")


@app.command()
def explain(
    *,
    config: ConfigOption = None,
    event_type: Annotated[
        EventType,
        option("--type", "TYPE", "The event's type, such as Reboot.", case_sensitive=False),
    ],
    source: Annotated[
        EventSource, option("--source", "SOURCE", "Platform or User.", case_sensitive=False)
    ] = EventSource.PLATFORM,
    status: Annotated[
        Literal["Scheduled", "Started"],
        option("--status", "STATUS", "Scheduled or Started.", case_sensitive=False),
    ] = "Scheduled",
    duration_seconds: Annotated[
        int, option("--duration-seconds", "N", "How long the interruption lasts; -1 is unknown.")
    ] = -1,
    notice_seconds: Annotated[
        float, option("--notice-seconds", "N", "The notice that is left.", min=0)
    ] = 900.0,
    description: Annotated[str, option("--description", "TEXT", "The event's description.")] = "",
    others: Annotated[
        bool, flag("--others", "The event is for other machines, not this one.")
    ] = False,
    machines: Annotated[
        int, option("--machines", "N", "How many machines the event names.", min=1)
    ] = 1,
) -> None:
    """Show what the agent would do for an event."""
    from forewarn.agent import rules
    from forewarn.client.event import Event

    loaded = _load(config)
    started = status == "Started"
    event = Event(
        event_id="",
        status=status,
        event_type=event_type.value,
        resource_type=RESOURCE_TYPE,
        resources=("",) * machines,
        not_before=None,
        description=description,
        source=source.value,
        duration_seconds=duration_seconds,
        concerns_me=not others,
        starts_by=None if started else notice_seconds,
    )
    notice = 0.0 if started else notice_seconds
    rule = rules.choose(loaded.settings.rule, event, notice)
    output.say(f"Rule: {rule.name}")
    for name in _but_for_its_duration(loaded.settings.rule, event, notice):
        output.say(f"Not {name!r}: the duration is unknown (--duration-seconds)")
    for line in _plan(rule, event, notice, loaded.settings):
        output.say(line)


@app.command()
def run(
    *,
    config: ConfigOption = None,
    dry_run: Annotated[
        bool, flag("--dry-run", "Do nothing and approve nothing; log what would be done.")
    ] = False,
    once: Annotated[
        bool, flag("--once", "End when everything for the first document is done.")
    ] = False,
) -> None:
    """Run the agent until SIGTERM or Ctrl-C."""
    options = [*["--dry-run"] * dry_run, *["--once"] * once]
    options += [] if config is None else ["--config", str(config)]
    if os.name == "posix":
        # The same process, without the command line's memory; -P: not the current folder's modules.
        os.execv(  # noqa: S606 - no shell is the point
            sys.executable, [sys.executable, "-P", "-m", PROGRAM, *options]
        )
    from forewarn.agent import __main__ as program

    raise typer.Exit(program.main(options))


@app.command()
def status(
    *,
    config: ConfigOption = None,
    address: Annotated[
        str | None,
        option(
            "--address",
            "ADDRESS",
            "The agent's status port, such as 127.0.0.1:8171; reads no settings.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the current events, and what was done for them.

    It asks the agent that runs on this machine.
    """
    from forewarn.agent import status as agent_status

    tree = _ask(_listen(config) if address is None else address)
    if as_json:
        output.document(tree)
        return
    for line in agent_status.lines(tree):
        output.say(line)


@app.command()
def retry(*, config: ConfigOption = None) -> None:
    """Have the agent retry failed preparations.

    For each event that it did not approve because a preparation failed, the agent prepares this
    machine again.
    """
    tree = _ask(_listen(config))
    held = [event for event in tree["events"] if event["phase"] == "Held"]
    if not held:
        output.note("No event is held.")
        return
    _signal(tree.get("process"))
    for event in held:
        name = f"{event['event_id']} {event['event_type']}"
        if event["stays_held"]:
            output.note(f"{name} stays held: {event['stays_held']}")
        else:
            output.say(f"retrying {name}")


def _signal(process: int | None) -> None:
    import signal

    word = getattr(signal, "SIGUSR1", None)
    if word is None:
        raise Failed(ExitStatus.USAGE, "this platform lacks SIGUSR1, which asks the agent to retry")
    try:  # a container's status port names a process that is another one here
        command = Path(f"/proc/{process or 0}/cmdline").read_bytes()
        if process is None or PROGRAM.encode() not in command.split(b"\0"):
            raise FileNotFoundError
        os.kill(process, word)
    except PermissionError as error:
        message = f"cannot signal the agent, process {process}: run as root or as its user"
        raise Failed(ExitStatus.UNAUTHORIZED, message) from error
    except OSError as error:
        message = "the agent's process is not visible from here: send SIGUSR1 where it runs"
        raise Failed(ExitStatus.NOT_FOUND, message) from error


def _load(config: Path | None) -> "Loaded":
    from forewarn.agent import settings

    with settings_are_usable():
        return settings.load(config, os.environ)


def _warnings(loaded: "Loaded") -> list[str]:
    import shutil

    from forewarn.agent.actions import http
    from forewarn.settings import OFF

    settings = loaded.settings
    steps = [step for rule in settings.rule if rule.enabled for step in rule.prepare]
    found = []
    if any(s.notify and s.notify.urls_file for s in steps) and not http.installed():
        found.append(http.MISSING)
    together = [r.name for r in settings.rule if r.approve in {"when-prepared", "when-all-ready"}]
    if together and not settings.peers:
        found.append(
            f"no peers are set: rule {together[0]!r} does not approve an event of several machines"
        )
    if any(step.ready for step in steps) and settings.status.listen == OFF:
        found.append("a rule has a ready action, but status.listen is off: no balancer can see it")
    found += [
        f"rule {rule.name!r}: no executable program {argv[0]!r} on this machine"
        for rule in settings.rule
        for step in rule.prepare
        if rule.enabled and step.command is not None
        for argv in (step.command.run, step.command.undo)
        if argv and Path(argv[0]).is_absolute() and shutil.which(argv[0]) is None
    ]
    found += [
        f"rule {rule.name!r}: systemd has no unit {unit!r} on this machine"
        for rule in settings.rule
        for step in rule.prepare
        if rule.enabled and (unit := getattr(step.service or step.signal, "unit", ""))
        if _is_missing(unit)
    ]
    return found


def _is_missing(unit: str) -> bool:
    """Tell whether systemd knows that there is no such unit; without systemd nobody knows it."""
    import shutil
    import subprocess

    from forewarn.agent.actions.program import SYSTEMCTL

    program = shutil.which(SYSTEMCTL)
    if program is None:
        return False
    try:
        shown = subprocess.run(  # noqa: S603 - it only asks
            [program, "show", "--property=LoadState", "--", unit],
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "LoadState=not-found" in shown.stdout.splitlines()


def _but_for_its_duration(own: "Sequence[Rule]", event: "Event", notice: float) -> "list[str]":
    import itertools

    import msgspec

    from forewarn.agent import rules
    from forewarn.client.event import UNKNOWN_DURATION

    if event.duration_seconds != UNKNOWN_DURATION:
        return []
    short = msgspec.structs.replace(event, duration_seconds=0)
    before = itertools.takewhile(lambda rule: not rules.matches(rule, event, notice), own)
    return [rule.name for rule in before if rules.matches(rule, short, notice)]


def _plan(
    rule: "Rule", event: "Event", notice: float, settings: "AgentSettings"
) -> "Iterator[str]":
    from forewarn.agent import decider, rules

    left = notice - settings.margin_seconds
    seen = decider.forecast(rule, event, settings.margin_seconds)
    if not event.started and any(not step.settings.tells for step in rule.prepare):
        yield (
            f"Time: {max(0.0, left):g} s for all actions ({notice:g} s of notice less "
            f"margin_seconds = {settings.margin_seconds:g})"
        )
    for number, prospect in enumerate(seen, 1):
        action = rules.action_name(prospect.action)
        yield f"  {number}. {action}: {_fate(prospect, rule)}"
    yield f"Approve: {_approval(rule, event, seen, settings)}"
    undone = [str(n) for n, prospect in enumerate(seen, 1) if prospect.undone]
    if undone:
        first = ", the last first" if len(undone) > 1 else ""
        yield f"Undo, when it is over{first}: {', '.join(reversed(undone))}"


def _fate(prospect: "ActionForecast", rule: "Rule") -> str:
    from forewarn.agent.rules import ActionOutcome

    step, terms = prospect.action, prospect.action.settings
    meant = {"hold": "; the event is then held", "approve": "; the event is not held (when_cut)"}
    if rule.approve == "never":
        meant["approve"] = ""
    waits = f"waits {step.ready.wait_seconds:g} s, " if step.ready is not None else ""
    match prospect.outcome:
        case ActionOutcome.DONE:
            limit = f"at most {prospect.limit_seconds:g} s"
            return f"{waits}{limit}; on failure: {terms.on_failure}"
        case ActionOutcome.CUT:
            left = f"but at most {prospect.limit_seconds:g} s are left: cut"
            return f"{waits}{left}{meant[rule.when_cut]}"
        case ActionOutcome.NO_TIME:
            needs = f" (needs_seconds = {terms.needs_seconds:g})" if terms.needs_seconds else ""
            left = f"not done: at most {max(0.0, prospect.left_seconds):g} s are left"
            return f"{left}{needs}{meant[rule.when_cut]}"
        case ActionOutcome.STARTED:
            return f"not done: the event has started{meant[rule.when_cut]}"
        case ActionOutcome.SHARED:
            return "not done again: an earlier action does the same"
        case _:
            return "not done: the event is already held"


def _approval(
    rule: "Rule", event: "Event", seen: "Sequence[ActionForecast]", settings: "AgentSettings"
) -> str:
    if rule.approve == "never":
        return "no"
    if event.started:
        return "no, the event has started"
    if rule.approve == "at-once":
        return "at once"
    cut = [number for number, each in enumerate(seen, 1) if each.outcome and each.outcome.cut]
    if cut and rule.when_cut == "hold":
        return f"no: the event is held, as the notice is too short for action {cut[0]}"
    several = len(event.resources) > 1
    if several and not settings.peers:
        return "no: no peers are set"
    when = "when all of its machines are prepared, by the first of them" if several else ""
    anyway = '; what is cut does not count (when_cut = "approve")' if cut else ""
    return (when or "when prepared") + anyway


def _listen(config: Path | None) -> str:
    from forewarn.settings import OFF

    try:
        listen = _load(config).settings.status.listen
    except Failed:
        output.note("note: without settings, use: forewarn agent status --address 127.0.0.1:8171")
        raise
    if listen == OFF:
        raise Failed(ExitStatus.USAGE, "status.listen is off: the agent has no status port")
    return listen


def _ask(listen: str) -> "dict[str, Any]":
    import json

    from forewarn.client import transport
    from forewarn.settings import split_address

    try:
        split_address(listen)
    except ValueError as error:
        raise Failed(ExitStatus.USAGE, str(error)) from error
    url = f"http://{listen}/status"
    try:
        reply = transport.request("GET", url, seconds=ANSWER_SECONDS, max_body=MAX_ANSWER)
        tree = json.loads(reply.body)
    except (transport.RequestFailed, ValueError) as error:
        message = f"no agent answers: {error}; start 'forewarn agent run', or use --address"
        raise Failed(ExitStatus.UNREACHABLE, message) from error
    if not isinstance(tree, dict) or "standing" not in tree:
        raise Failed(ExitStatus.UNREACHABLE, f"the server at {listen} is not an agent")
    return tree
