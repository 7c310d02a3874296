"""What the agent says on its standard error: the form of the lines, and a line for each news.

On a terminal a line for people; otherwise one JSON object a line, which journald and the Windows
Event Log take as it is. Where journald reads it, each line begins with its priority
(sd-daemon(3)). The standard library's logging, for another would cost the agent's start and memory.
"""

import logging
import math
import os
import sys
from datetime import UTC, datetime
from typing import Final, TextIO

import msgspec

from forewarn import systemd
from forewarn.agent import rules, state
from forewarn.agent.decider import (
    AskPeers,
    BeginAction,
    Decider,
    Input,
    Output,
    PeersAnswered,
    Reloaded,
    name_of,
)
from forewarn.agent.rules import ActionOutcome
from forewarn.agent.state import Phase
from forewarn.settings import Log

LOGGER: Final = logging.getLogger("forewarn.agent")

PRIORITIES: Final = {
    logging.DEBUG: "<7>",
    logging.INFO: "<6>",
    logging.WARNING: "<4>",
    logging.ERROR: "<3>",
    logging.CRITICAL: "<2>",
}

PHASES: Final = {
    Phase.HELD: (logging.WARNING, "is held: it is not approved, so its notice runs out"),
    Phase.PREPARED: (logging.INFO, "is prepared"),
    Phase.APPROVED: (logging.INFO, "is approved"),
}
"""What is logged of an event that enters a phase."""


def set_up(settings: Log, stream: TextIO | None = None) -> None:
    """Send everything that is logged to one stream, standard error by default, in one form."""
    to = stream or sys.stderr
    as_json = settings.format == "json" or (settings.format == "auto" and not to.isatty())
    journald = systemd.reads(to, os.environ)
    handler = logging.StreamHandler(to)
    handler.setFormatter(_JsonFormatter(journald=journald) if as_json else _ConsoleFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())


class _ConsoleFormatter(logging.Formatter):
    """A line for people, without control characters: a terminal would obey them."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the lines of a traceback."""
        text = super().format(record)
        return "".join(each if each.isprintable() or each == "\n" else "?" for each in text)


class _JsonFormatter(logging.Formatter):
    """One JSON object a line; an entry's `facts` stand beside its message."""

    def __init__(self, *, journald: bool) -> None:
        super().__init__()
        self._journald = journald

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        at = datetime.fromtimestamp(record.created, UTC)
        entry = {
            "timestamp": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            "logger": record.name,
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        line = msgspec.json.encode(entry, enc_hook=str).decode()
        return (PRIORITIES.get(record.levelno, "") if self._journald else "") + line


class ActivityLog:
    """Logs what happens, with the event's id and its rule; in a dry run no end of an action."""

    def __init__(self, *, dry: bool) -> None:
        self._dry = dry
        self._begun: dict[str, BeginAction] = {}
        self._phases: dict[str, Phase] = {}
        self._started: set[str] = set()
        self._asked: AskPeers | None = None
        self._missing: dict[str, tuple[str, ...]] = {}
        self._retried: set[str] | None = None
        """The events that are prepared for again since an operator asked for it; None if nobody
        did."""

    def settled(self, decider: Decider) -> None:
        """Log what an input has led to, after all its outputs."""
        started = {key for key, event in decider.events.items() if event.started}
        for key in sorted(started - self._started):
            _log(key, f"{key} has started")
        self._started = started
        # Why an event stays held although an operator reloaded the agent.
        if self._retried is None or not decider.looked:
            return  # before its first document the decider has not acted on the request
        for key, case in decider.state.cases.items():
            if case.phase is not Phase.HELD or key in self._retried:
                continue
            why = decider.stays_held(case, math.inf)  # it was decided before
            _log(key, f"{key} stays held: {why}", rule=case.rule.name, level=logging.WARNING)
        self._retried = None

    def _peers_answered(self, answered: PeersAnswered) -> None:
        """Log which peers are not prepared, if they are others than before."""
        asked = self._asked
        if asked is None or asked.round != answered.round:
            return  # a late answer of an older round
        prepared = {name_of(name) for name in answered.prepared}
        missing = tuple(name for name in asked.machines if name_of(name) not in prepared)
        if missing and self._missing.get(asked.event_id) != missing:
            waits = f"is prepared here; its approval waits for {', '.join(missing)}"
            _log(asked.event_id, f"{asked.event_id} {waits}", level=logging.WARNING)
        self._missing[asked.event_id] = missing

    def heard(self, what: Input | Output, decider: Decider) -> None:
        """Log an input before it is handled, or an output when it is carried out."""
        match what:
            case PeersAnswered():
                self._peers_answered(what)
            case Reloaded():
                self._retried = set()
            case AskPeers():
                self._asked = what
            case BeginAction():
                self._begun[what.effect] = what
            case state.RuleMatched(event=event, rule=rule):
                text = f"{event.event_type} {event.event_id}: rule {rule.name!r}"
                _log(event.event_id, text, rule=rule.name)
            case state.ActionEnded():
                self._ended(what, decider)
            case state.ActionSkipped(event_id=event_id, outcome=outcome) if not outcome.good:
                text = f"action {what.index + 1} for {event_id} is not done: {outcome}"
                _log(event_id, text, level=logging.WARNING)
            case state.EventRetried(event_id=event_id):
                why = "its notice is longer now"
                if self._retried is not None:
                    self._retried.add(event_id)
                    why = "an operator asked for it"
                _log(event_id, f"retrying {event_id}: {why}")
            case state.EventGone(event_id=event_id):
                _log(event_id, f"{event_id} is over")
                self._phases.pop(event_id.upper(), None)
                self._missing.pop(event_id, None)
            case state.Record():
                LOGGER.debug("%s", what)
        self._log_phases(decider)

    def _ended(self, record: state.ActionEnded, decider: Decider) -> None:
        begun = self._begun.pop(record.effect, None)
        if self._dry:
            return
        known = begun or decider.state.effects.get(record.effect)
        name = record.effect if known is None else rules.action_name(known.action)
        words = f"{'undoing' if record.undo else 'doing'} {name}: {record.outcome}"
        if record.text:
            words += f": {record.text}"
        if record.outcome is ActionOutcome.DONE:
            level = logging.INFO
        elif record.final:
            level = logging.WARNING
        else:
            # Waiting by failing, as for room in a pool, is not worth a line for each try.
            level = logging.INFO if begun is None or begun.attempt == 1 else logging.DEBUG
            words += "; the agent tries again"
        if begun is None:
            LOGGER.log(level, "%s", words)
        else:
            _log(begun.event.event_id, words, rule=begun.rule, level=level)

    def _log_phases(self, decider: Decider) -> None:
        for key, case in decider.state.cases.items():
            before, self._phases[key] = self._phases.get(key), case.phase
            if case.phase is before or case.phase not in PHASES or not case.rule.acts:
                continue
            level, words = PHASES[case.phase]
            _log(case.event_id, f"{case.event_id} {words}", rule=case.rule.name, level=level)


def _log(event_id: str, text: str, *, rule: str | None = None, level: int = logging.INFO) -> None:
    facts = {"event_id": event_id} | ({} if rule is None else {"rule": rule})
    LOGGER.log(level, "%s", text, extra={"facts": facts})
