"""What the log says of an agent's doings: a line for each thing that people want to know."""

import logging
from typing import Final

from forewarn.agent import view
from forewarn.agent.consent import name_of
from forewarn.agent.machine import Machine
from forewarn.agent.messages import Ask, Begin, Heard
from forewarn.agent.phases import Phase
from forewarn.agent.records import Ended, Fact, Gone, Outcome, Passed, Retried, Taken

LOGGER: Final = logging.getLogger("forewarn.agent")


class Telling:
    """Tells the log; each line about an event carries its id, and its rule where one acts.

    Args:
        dry: Whether nothing is done, so that no end of an action is worth a line.
    """

    def __init__(self, *, dry: bool) -> None:
        self._dry = dry
        self._begun: dict[str, Begin] = {}
        self._phases: dict[str, Phase] = {}
        self._started: set[str] = set()
        self._asked: dict[int, Ask] = {}
        self._missing: dict[str, tuple[str, ...]] = {}

    def began(self, command: Begin) -> None:
        """Take note that an action begins."""
        self._begun[command.effect] = command

    def asked(self, command: Ask) -> None:
        """Take note that peers are asked; of a round that is answered late nothing is told."""
        self._asked = {command.round: command}

    def heard(self, heard: Heard) -> None:
        """Tell whose word is wanting, when that is another's than before."""
        asked = self._asked.get(heard.round)
        if asked is None:
            return
        prepared = {name_of(name) for name in heard.prepared}
        missing = tuple(name for name in asked.machines if name_of(name) not in prepared)
        if missing and self._missing.get(asked.event_id) != missing:
            LOGGER.warning(
                "%s is prepared here, and is approved when these say that they are too: %s",
                asked.event_id,
                ", ".join(missing),
                extra={"facts": {"event_id": asked.event_id}},
            )
        self._missing[asked.event_id] = missing

    def wrote(self, record: Fact, machine: Machine) -> None:
        """Tell what a record says, and what it led to.

        Args:
            record: As it was written.
            machine: The decider after it.
        """
        match record:
            case Taken():
                LOGGER.info(
                    "%s %s: rule %r",
                    record.event.event_type,
                    record.event.event_id,
                    record.rule.name,
                    extra={"facts": _facts(record.event.event_id, record.rule.name)},
                )
            case Ended():
                self._ended(record)
            case Passed() if not record.outcome.good:
                LOGGER.warning(
                    "action %d for %s is not done: %s",
                    record.step + 1,
                    record.event_id,
                    record.outcome,
                    extra={"facts": {"event_id": record.event_id}},
                )
            case Retried():
                LOGGER.info(
                    "%s was held, and is prepared for once more: somebody wants it",
                    record.event_id,
                    extra={"facts": {"event_id": record.event_id}},
                )
            case Gone():
                LOGGER.info(
                    "%s is over", record.event_id, extra={"facts": {"event_id": record.event_id}}
                )
                self._phases.pop(record.event_id.upper(), None)
                self._missing.pop(record.event_id, None)
            case _:
                LOGGER.debug("%s", record)
        self._tell_phases(machine)

    def looked(self, machine: Machine) -> None:
        """Tell which events have started since the last look."""
        started = {key for key, event in machine.events.items() if event.started}
        for key in sorted(started - self._started):
            LOGGER.info("%s has started", key, extra={"facts": {"event_id": key}})
        self._started = started

    def _ended(self, record: Ended) -> None:
        begun = self._begun.get(record.effect)
        if self._dry:
            return
        verb = "undoing" if record.undo else "doing"
        name = view.readable(record.effect) if begun is None else view.name(begun.step)
        words = f"{verb} {name}: {record.outcome}"
        if record.text:
            words += f": {record.text}"
        if record.outcome is Outcome.DONE:
            level = logging.INFO
        elif record.final:
            level = logging.WARNING
        else:
            # Waiting by failing, as for room in a pool, is not worth a line for each try.
            level = logging.INFO if begun is None or begun.attempt == 1 else logging.DEBUG
            words += "; it is tried again"
        facts = {} if begun is None else _facts(begun.event.event_id, begun.rule)
        LOGGER.log(level, "%s", words, extra={"facts": facts})

    def _tell_phases(self, machine: Machine) -> None:
        for key, case in machine.ledger.cases.items():
            before, self._phases[key] = self._phases.get(key), case.phase
            if case.phase is before or case.rule is None:
                continue
            words = ""
            level = logging.INFO
            if case.phase is Phase.HELD:
                words = "is held: it is not approved, and its notice runs out"
                level = logging.WARNING
            elif case.phase is Phase.PREPARED and case.rule.acts:
                words = "is prepared"
            elif case.phase is Phase.APPROVED:
                words = "is approved"
            if words:
                facts = _facts(case.event_id, case.rule.name)
                LOGGER.log(level, "%s %s", case.event_id, words, extra={"facts": facts})


def _facts(event_id: str, rule: str) -> dict[str, str]:
    return {"event_id": event_id, "rule": rule}
