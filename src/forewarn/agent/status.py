"""The agent's `/status`, and its questions to its peers'.

Peers read one another's `/status`: `agrees` says that a machine is prepared for an event and that
the event may start. Each answer of the port comes from the daemon's last publication: a probe
neither waits for the deciding thread nor disturbs it.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from forewarn import clock
from forewarn.agent import rules, state
from forewarn.agent.approvals import AskPeers, PeersAnswered, agrees, name_of
from forewarn.agent.decider import Decider, Input
from forewarn.agent.rules import ActionOutcome
from forewarn.agent.settings import MACHINE_PLACE
from forewarn.agent.state import Case, Effect
from forewarn.client import transport
from forewarn.client.transport import RequestFailed
from forewarn.vocabulary import AgentStatus

LOGGER: Final = logging.getLogger("forewarn.agent")

REASONS: Final[Mapping[ActionOutcome, str]] = MappingProxyType(
    {
        ActionOutcome.CUT: "the notice ended before it was done",
        ActionOutcome.NO_TIME: "too little notice was left to begin it",
        ActionOutcome.STARTED: "the event had started before it was begun",
        ActionOutcome.INTERRUPTED: "it may be half done already, and it is not repeatable",
    }
)
"""The reasons of outcomes without a message of their own."""


def is_ready(decider: Decider) -> bool:
    """Return True if the balancer may send requests to this machine."""
    effects = decider.state.effects.values()
    return not any(effect.action.ready is not None and not effect.undoing for effect in effects)


def word(decider: Decider) -> tuple[str, str]:
    """Return this machine's state, and the reason (section 10); the most urgent event decides."""
    state_, cases = decider.state, decider.state.cases.values()
    held = [case for case in cases if case.phase is state.Phase.HELD]
    if held:
        rule = held[0].rule
        why = (_reason(held[0], index, decider) for index in range(len(rule.prepare)))
        return AgentStatus.HELD, f"{rule.name}: {next(filter(None, why), '')}".rstrip(": ")
    if any(case.phase is state.Phase.PREPARING for case in cases):
        return AgentStatus.PREPARING, ""
    left = [
        effect
        for effect in state_.effects.values()
        if not state_.needed(effect) and not effect.action.settings.tells
    ]
    if left:
        said = [f"{effect.action.kind}: {_one_line(effect.text)}" for effect in left if effect.text]
        return AgentStatus.RECOVERING, "".join(said[:1])
    prepared = {state.Phase.PREPARED, state.Phase.APPROVED}
    if any(case.phase in prepared for case in cases):
        return AgentStatus.READY, ""
    return AgentStatus.BACK, ""


def report(decider: Decider, now: float, *, dry: bool = False) -> dict[str, Any]:
    """Return `/status`; a dry run is ready, and agrees to nothing."""
    cases = decider.state.cases.values()
    return {
        "machine": decider.name,
        "dry_run": dry,
        "ready": dry or is_ready(decider),
        "events": [_case(case, decider, now, dry=dry) for case in cases],
        "standing": [_effect(effect) for effect in decider.state.effects.values()],
    }


def without_reasons(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return a status for other machines: the output of programs may hold secrets."""

    def bare(each: Mapping[str, Any]) -> Mapping[str, Any]:
        return each if not each["reason"] else {**each, "reason": ""}

    events = [{**event, "actions": list(map(bare, event["actions"]))} for event in told["events"]]
    return {**told, "events": events, "standing": list(map(bare, told["standing"]))}


def lines(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield a status as `forewarn agent status` shows it."""
    counts = {
        "held": sum(event["phase"] == state.Phase.HELD.value for event in told["events"]),
        "stuck": sum(effect["stuck"] for effect in told["standing"]),
    }
    parts = [f"{count} {what}" for what, count in counts.items() if count]
    parts.append("ready" if told["ready"] else "draining")
    yield f"{told['machine'] or 'a machine with an unknown name'}: {', '.join(parts)}"
    if told["dry_run"]:
        yield "a dry run: the agent does nothing, and tells no peer that it is prepared"
    if told["trouble"]:
        yield f"trouble: {told['trouble']}"
    if not told["endpoint"]["answers"]:
        ago = told["endpoint"]["answered_seconds_ago"]
        when = "has not answered yet" if ago is None else f"answered last {ago:g} s ago"
        yield f"the endpoint {when}"
    for event in told["events"]:
        left = event["notice_left_seconds"]
        notice = "" if left is None else f", {left:g} s of notice left"
        yield (
            f"{event['event_id']} {event['event_type']} {event['event_status']}{notice}: "
            f"{event['phase']} by rule {event['rule']!r}"
        )
        if event["stays_held"]:
            yield f"  stays held at a reload: {event['stays_held']}"
        for action in event["actions"]:
            yield _because(f"  {action['kind']}: {action['result'] or 'not yet'}", action)
    for effect in told["standing"]:
        if not effect["tells"]:  # otherwise it has told somebody, and changed nothing
            how = "stuck" if effect["stuck"] else "being undone" if effect["undoing"] else "stands"
            yield _because(f"{how}: {effect['effect']}", effect)


def _because(line: str, told: Mapping[str, Any]) -> str:
    return f"{line}: {told['reason']}" if told.get("reason") else line


def _case(case: Case, decider: Decider, now: float, *, dry: bool) -> dict[str, Any]:
    event = decider.events.get(case.event_id, case.event)
    rule = case.rule
    left = None if event.starts_by is None else round(max(0.0, event.starts_by - now), 1)
    held = decider.looked and case.phase is state.Phase.HELD
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
        "agrees": not dry and agrees(case),
        "stays_held": decider.stays_held(case, now) if held else "",
        "actions": [
            {
                "kind": action.kind,
                "result": None if result is None else result.value,
                "reason": _reason(case, index, decider),
            }
            for index, (action, result) in enumerate(zip(rule.prepare, case.results, strict=True))
        ],
    }


def _reason(case: Case, index: int, decider: Decider) -> str:
    result = case.results[index]
    if result is not None:
        return REASONS.get(result) or _one_line(case.reasons.get(index, ""))
    effect = decider.state.effects.get(case.effect(index))
    if effect is None or effect.event_id != case.event_id:
        return ""
    of_doing = effect.doing or effect.outcome is not None
    return _one_line(effect.text) if of_doing else ""


def _one_line(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in " ".join(text.split()))


def _effect(effect: Effect) -> dict[str, Any]:
    return {
        "effect": rules.action_name(effect.action),
        "tells": effect.action.settings.tells,
        "event_id": effect.event_id,
        "rule": effect.rule,
        "doing": effect.doing,
        "undoing": effect.undoing,
        "stuck": effect.stuck is not None,
        "reason": _one_line(effect.text),
    }


MAX_ANSWER: Final = 1024 * 1024

ANSWER_SECONDS: Final = 2.0
"""The time limit of a peer's whole answer; a slower one is asked again."""

PATH: Final = "/status"
PEERS_AT_ONCE: Final = 200
"""The most peers that are asked at once, each by a thread: an update domain of the largest scale
set has fewer."""


class Peers:
    """The other agents, by a pattern with `{machine}` or a list of addresses."""

    def __init__(self, addresses: str | Sequence[str], tell: Callable[[Input], None]) -> None:
        self._addresses = addresses
        self._tell = tell

    def ask(self, output: AskPeers) -> None:
        """Ask all at once; report the prepared ones when all have answered or the time is over."""
        if start_thread(self._round, output) is None:
            self._tell(PeersAnswered(output.round, frozenset()))

    def _round(self, output: AskPeers) -> None:
        until = clock.monotonic() + ANSWER_SECONDS
        prepared: list[str] = []
        addresses = self._of(output.machines)
        left = iter(addresses)  # the threads share it
        threads = [
            start_thread(_ask, left, output.event_id, prepared, until)
            for _ in addresses[:PEERS_AT_ONCE]
        ]
        for thread in threads:
            if thread is not None:
                thread.join(max(0.0, until - clock.monotonic()))
        self._tell(PeersAnswered(output.round, frozenset(tuple(prepared))))

    def _of(self, machines: Sequence[str]) -> list[str]:
        if isinstance(self._addresses, str):
            return [self._addresses.replace(MACHINE_PLACE, machine) for machine in machines]
        return list(self._addresses)


def start_thread(what: Callable[..., None], *told: object) -> threading.Thread | None:
    """Start a thread; return None where the system gives no more of them."""
    thread = threading.Thread(target=what, args=told, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        LOGGER.warning("cannot start a thread: %s", error)
        return None
    return thread


def _ask(addresses: Iterator[str], event_id: str, prepared: list[str], until: float) -> None:
    for address in addresses:
        if (seconds := until - clock.monotonic()) <= 0:
            return
        url = address.rstrip("/") + PATH
        try:
            reply = transport.request("GET", url, seconds=seconds, max_body=MAX_ANSWER)
        except (RequestFailed, ValueError):
            continue  # a peer that does not answer, or has an impossible address, is not prepared
        name = _agreeing(reply.body, event_id) if reply.status == 200 else None
        if name is not None:
            prepared.append(name)


class _PeerEvent(msgspec.Struct):
    event_id: str
    agrees: bool


class _PeerStatus(msgspec.Struct):
    """The part of a peer's status that matters here."""

    machine: str | None
    events: list[_PeerEvent]


def _agreeing(answer: bytes, event_id: str) -> str | None:
    try:
        told = msgspec.json.decode(answer, type=_PeerStatus)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    ids = {each.event_id.upper() for each in told.events if each.agrees}
    return name_of(told.machine) if told.machine and event_id.upper() in ids else None
