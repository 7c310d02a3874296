"""What the agent shows of itself: pure, from the decider's state to values.

`/status` is also what peers read of one another: an event with `agrees` true is one that this
machine is prepared for, and whose start it has nothing against.
"""

import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from forewarn.agent import consent
from forewarn.agent.machine import Machine
from forewarn.agent.records import Case, Effect, Outcome
from forewarn.agent.steps import Step

MAX_ANSWER: Final = 1024 * 1024
"""The longest status of a peer that is read."""

COMMAND_LENGTH: Final = 60
"""How much of a program's line is shown, in characters: enough to know it by."""

REASONS: Final[Mapping[Outcome, str]] = MappingProxyType(
    {
        Outcome.CUT: "the notice was over before it had ended",
        Outcome.NO_TIME: "too little notice was left to begin it",
        Outcome.STARTED: "the event had started before it was begun",
        Outcome.INTERRUPTED: "the agent ended in the middle of it, and it may not be begun again",
    }
)
"""Why an action ended so; for the others it has said it itself."""


def readable(effect: str) -> str:
    """Return what an effect's name says to people: a program's command line, a request's target.

    Args:
        effect: As records and `/status` have it, of this version or another.
    """
    kind, _, rest = effect.partition(" ")
    if kind not in {"command", "http"}:
        return effect
    try:
        parts = msgspec.json.decode(rest)
        return f"command {line(parts[0])}" if kind == "command" else f"http {parts[0]} {parts[1]}"
    except (ValueError, TypeError, LookupError):  # as an agent of another version may name it
        return effect


def name(step: Step) -> str:
    """Return what an action is, for people; a long program is cut short."""
    if step.command is not None:
        return f"command {line(step.command.run)}"
    if step.http is not None:
        return f"http {step.http.method} {step.http.url}"
    return step.terms.effect or step.kind


def line(argv: Sequence[str]) -> str:
    """Return a program and its arguments as a shell would take them, cut where they are long."""
    text = " ".join(shlex.join(argv).split())
    return text if len(text) <= COMMAND_LENGTH else f"{text[: COMMAND_LENGTH - 1]}…"


def ready(machine: Machine) -> bool:
    """Tell whether the balancer may send requests to this machine."""
    effects = machine.ledger.effects.values()
    return not any(effect.step.ready is not None and not effect.undoing for effect in effects)


def status(machine: Machine, now: float, *, dry: bool = False) -> dict[str, Any]:
    """Return what is in hand and what stands, for people and peers.

    Args:
        machine: The decider.
        now: The monotonic clock's seconds.
        dry: Whether nothing is done in truth: then the machine stays in its pool, and peers are
            not told that it is prepared.
    """
    return {
        "machine": machine.name,
        "dry_run": dry,
        "ready": dry or ready(machine),
        "events": [_case(case, machine, now, dry=dry) for case in machine.ledger.cases.values()],
        "standing": [_effect(effect) for effect in machine.ledger.effects.values()],
    }


def without_reasons(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return a status for another machine's eyes: what programs said may hold their secrets.

    Args:
        told: As `status` returns it, which stays as it is.
    """

    def bare(each: Mapping[str, Any]) -> Mapping[str, Any]:
        return each if not each["reason"] else {**each, "reason": ""}

    events = [{**event, "actions": list(map(bare, event["actions"]))} for event in told["events"]]
    return {**told, "events": events, "standing": list(map(bare, told["standing"]))}


def agreeing(answer: bytes, event_id: str) -> str | None:
    """Return the name of a peer that is prepared for an event, from its `/status`.

    Returns:
        The name as names are compared; None if it is not prepared for this very event, or what it
        says is no status.
    """
    try:
        told = msgspec.json.decode(answer, type=_Told)
    except msgspec.DecodeError:
        return None
    ids = {each.event_id.upper() for each in told.events if each.agrees}
    return consent.name_of(told.machine) if told.machine and event_id.upper() in ids else None


class _ToldEvent(msgspec.Struct):
    event_id: str
    agrees: bool


class _Told(msgspec.Struct):
    """What matters of a peer's status; what else it says is its own business."""

    machine: str | None
    events: list[_ToldEvent]


def _case(case: Case, machine: Machine, now: float, *, dry: bool) -> dict[str, Any]:
    event = machine.events.get(case.event_id, case.event)
    rule = case.rule
    assert rule is not None
    left = None if event.starts_by is None else round(max(0.0, event.starts_by - now), 1)
    return {
        "event_id": event.event_id,
        "event_type": str(event.event_type),
        "event_status": str(event.status),
        "resources": list(event.resources),
        "concerns_me": event.concerns_me,
        "notice_left_seconds": left,
        "rule": rule.name,
        "approve": rule.approve,
        "phase": case.phase.value,
        "agrees": not dry and consent.agrees(case),
        "actions": [
            {
                "kind": step.kind,
                "result": None if result is None else result.value,
                "reason": _reason(case, index, machine),
            }
            for index, (step, result) in enumerate(zip(rule.prepare, case.results, strict=True))
        ],
    }


def _reason(case: Case, index: int, machine: Machine) -> str:
    """Return why an action is not done, or why its last try was none; `""` if nothing says why."""
    result = case.results[index]
    if result is not None:
        return REASONS.get(result) or _line(case.reasons.get(index, ""))
    effect = machine.ledger.effects.get(case.effect(index))
    if effect is None or effect.event_id != case.event_id:
        return ""
    of_doing = effect.doing or effect.outcome is not None
    return _line(effect.text) if of_doing else ""


def _line(text: str) -> str:
    """Return what an action said in one line that no terminal takes for orders."""
    return "".join(each if each.isprintable() else "?" for each in " ".join(text.split()))


def _effect(effect: Effect) -> dict[str, Any]:
    return {
        "effect": name(effect.step),
        "tells": effect.step.terms.tells,
        "event_id": effect.event_id,
        "rule": effect.rule,
        "doing": effect.doing,
        "undoing": effect.undoing,
        "stuck": effect.stuck is not None,
        "reason": _line(effect.text),
    }
