"""`forewarn agent`: prepares a machine for maintenance, approves, and brings it back."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from forewarn.cli import output
from forewarn.cli.command import command, group
from forewarn.cli.exits import ExitStatus, Failed, become, settings_are_usable
from forewarn.cli.options import JSON, flag, option
from forewarn.cli.unit import unit_state
from forewarn.vocabulary import EventType

if TYPE_CHECKING:
    from forewarn.agent.settings import Loaded

PROGRAM = "forewarn.agent"
"""The module that is the agent's process."""

ANSWER_SECONDS = 5.0
"""For a local agent's answer, which comes at once."""

MAX_ANSWER = 16 * 1024 * 1024
"""The longest answer that is read: a thousand events with a hundred actions."""

CONFIG: Final = option(
    "--config FILE",
    "The settings (TOML), with the drop-ins beside them. Default: FOREWARN_AGENT_CONFIG, "
    "the user's own agent.toml, or /etc/forewarn/agent.toml.",
)


@command(CONFIG)
def check(config: Path | None) -> None:
    """Check the settings; show which rule takes which events.

    For each type of event it lists the rules that may take it, in order.
    """
    from forewarn.agent.rules import BUILT_IN, Match

    loaded = load(config)
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
    for warning in warnings(loaded):
        output.note(f"note: {warning}")


@command(
    CONFIG,
    flag("--dry-run", "Do nothing and approve nothing; log what would be done."),
    flag("--once", "End when everything for the first document is done."),
)
def run(config: Path | None, *, dry_run: bool, once: bool) -> None:
    """Run the agent until SIGTERM or Ctrl-C."""
    options = [*["--dry-run"] * dry_run, *["--once"] * once]
    options += [] if config is None else ["--config", str(config)]
    become(PROGRAM, options)
    from forewarn.agent import __main__ as program

    raise click.exceptions.Exit(program.main(options))


@command(
    CONFIG,
    option(
        "--address ADDRESS", "The agent's status port, such as 127.0.0.1:8171; reads no settings."
    ),
    JSON,
)
def status(config: Path | None, *, address: str | None, as_json: bool) -> None:
    """Show the current events, and what was done for them.

    It asks the agent that runs on this machine.
    """
    from forewarn.agent import status as agent_status

    tree = ask(_listen(config) if address is None else address)
    if as_json:
        output.document(tree)
        return
    for line in agent_status.lines(tree):
        output.say(line)


def load(config: Path | None) -> "Loaded":
    """Return the agent's settings; Failed where they cannot be used."""
    from forewarn.agent import settings

    with settings_are_usable():
        return settings.load(config, os.environ)


def warnings(loaded: "Loaded") -> list[str]:
    """Return warnings of valid settings that do not fit this machine."""
    import shutil

    from forewarn.agent.actions import http
    from forewarn.settings import OFF

    settings = loaded.settings
    steps = [(rule.name, step) for rule in settings.rule if rule.enabled for step in rule.prepare]
    found = []
    if any(s.notify and s.notify.urls_file for _, s in steps) and not http.installed():
        found.append(http.MISSING)
    together = [r.name for r in settings.rule if r.approve in {"when-prepared", "when-all-ready"}]
    if together and not settings.peers:
        found.append(
            f"no peers are set: rule {together[0]!r} does not approve an event of several machines"
        )
    if any(step.ready for _, step in steps) and settings.status.listen == OFF:
        found.append("a rule has a ready action, but status.listen is off: no balancer can see it")
    found += [
        f"rule {name!r}: no executable program {argv[0]!r} on this machine"
        for name, step in steps
        if step.command is not None
        for argv in (step.command.run, step.command.undo)
        if argv and Path(argv[0]).is_absolute() and shutil.which(argv[0]) is None
    ]
    found += [
        f"rule {name!r}: no file {place} on this machine, and no URL"
        for name, step in steps
        if step.notify is not None
        for place in (step.notify.slack, step.notify.teams, step.notify.webhook)
        if place and "://" not in place and not Path(place).exists()
    ]
    found += [
        f"rule {name!r}: systemd has no unit {unit!r} on this machine"
        for name, step in steps
        if (unit := getattr(step.service or step.signal, "unit", ""))
        if unit_state(unit).get("LoadState") == "not-found"
    ]
    return found


def _listen(config: Path | None) -> str:
    from forewarn.settings import OFF

    try:
        listen = load(config).settings.status.listen
    except Failed:
        output.note("note: without settings, use: forewarn agent status --address 127.0.0.1:8171")
        raise
    if listen == OFF:
        raise Failed(ExitStatus.USAGE, "status.listen is off: the agent has no status port")
    return listen


def ask(listen: str) -> "dict[str, Any]":
    """Return the status of the agent at an address; Failed where none answers."""
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


commands = group(
    "Run the agent: prepare this machine for maintenance, approve, and bring it back.",
    {"check": check, "run": run, "status": status},
    short_help="Run the agent: prepare this machine, approve, bring it back.",
)
