"""The decider on a bench: its time, its document and its actions' ends are the test's."""

from typing import Any

import msgspec

from forewarn.agent import approvals, decider
from forewarn.agent.rules import ActionOutcome, Rule, RuleAction
from forewarn.agent.state import AnyRecord, Record
from forewarn.client.event import Event

ME = "web-0"
MARGIN = 5.0
STOP = 60.0
START = 1000.0
NOTICE = 900.0


def event(event_id: str = "E1", *, resources: tuple[str, ...] = (ME,), **given: Any) -> Event:
    """Return a Reboot with fifteen minutes' notice, but for what is given."""
    names = {name.removeprefix("_").casefold() for name in resources}
    values: dict[str, Any] = {
        "event_id": event_id,
        "status": "Scheduled",
        "event_type": "Reboot",
        "resource_type": "VirtualMachine",
        "resources": resources,
        "not_before": None,
        "source": "Platform",
        "concerns_me": ME in names,
        "starts_by": START + NOTICE,
    }
    values |= given
    if values["status"] == "Started":
        values["starts_by"] = None
    return Event(**values)


def rule(*prepare: dict[str, Any], **given: Any) -> Rule:
    """Return a rule as the settings would give it."""
    values: dict[str, Any] = {
        "name": "r",
        "match": {},
        "prepare": list(prepare),
        "approve": "when-prepared",
    }
    return msgspec.convert(values | given, Rule)


def begin(action: RuleAction, of: Event, **given: Any) -> decider.BeginAction:
    values: dict[str, Any] = {
        "run": 1,
        "effect": "e",
        "undo": False,
        "rule": "r",
        "until": 1e9,
        "attempt": 1,
        "facts": None,
    }
    return decider.BeginAction(action=action, event=of, **(values | given))


def service(unit: str = "web", **terms: Any) -> dict[str, Any]:
    return {"service": {"stop": unit, **terms}}


def command(program: str, **terms: Any) -> dict[str, Any]:
    return {"command": {"run": [program], "undo": [f"un{program}"], **terms}}


def name(step: Any) -> str:
    """Return a step in a word."""
    if step.service is not None:
        return step.service.unit
    return step.command.run[0] if step.command is not None else step.kind


class Bench:
    """Runs a decider, and keeps what it writes as a journal would."""

    def __init__(self, *rules: Rule, boot: str = "boot-1", me: str | None = ME) -> None:
        self.now = START
        self.rules = rules
        self.me = me
        self.journal: list[AnyRecord] = []
        self.runs: dict[str, decider.BeginAction] = {}
        """The last one of each action."""
        self.under_way: dict[int, decider.BeginAction] = {}
        self.most_at_once = 0
        self.approvals: list[approvals.ApproveEvent] = []
        self.asked: list[approvals.AskPeers] = []
        self.document: tuple[Event, ...] = ()
        self.start(boot)

    def start(self, boot: str = "boot-1") -> list[str]:
        """Begin a process of its own from the journal, as after a kill."""
        self.runs, self.under_way = {}, {}
        self.decider = decider.Decider(self.rules, MARGIN, read_again(self.journal), STOP)
        return self.tell(decider.AgentStarted(boot))

    def tell(self, cause: decider.Input) -> list[str]:
        """Tell one cause, and return what followed in words, the records left out."""
        said = []
        if isinstance(cause, decider.ActionFinished):
            self.under_way.pop(cause.run, None)
        for told in self.decider.handle(cause, self.now):
            said += self._take(told)
        return said

    def _take(self, told: decider.Output) -> list[str]:
        match told:
            case Record():
                self.journal.append(told)
                return []
            case decider.BeginAction():
                word = f"{'undo' if told.undo else 'do'} {name(told.action)}"
                self.runs[name(told.action)] = self.under_way[told.run] = told
                self.most_at_once = max(self.most_at_once, len(self.under_way))
                return [word]
            case decider.StopAction():
                return [f"stop {name(self.under_way[told.run].action)}"]
            case approvals.ApproveEvent():
                self.approvals.append(told)
                return [f"approve {told.event.event_id}"]
            case approvals.AskPeers():
                self.asked.append(told)
                return [f"ask {' '.join(told.machines)}"]
            case _:
                return [type(told).__name__.lower()]

    def see(self, *events: Event) -> list[str]:
        self.document = events
        return self.tell(decider.DocumentSeen(events, self.me))

    def end(self, which: str, outcome: ActionOutcome = ActionOutcome.DONE) -> list[str]:
        return self.tell(decider.ActionFinished(self.runs[which].run, outcome, "said so"))

    def find(self, which: str, **facts: Any) -> list[str]:
        return self.tell(decider.FactsFound(self.runs[which].run, facts))

    def let_pass(self, seconds: float) -> list[str]:
        """Let time pass, waking the decider whenever it asked for it."""
        said, until = [], self.now + seconds
        while self.decider.wake_at is not None and self.decider.wake_at <= until:
            self.now = max(self.now, self.decider.wake_at)
            said += self.tell(decider.TimePassed())
        self.now = until
        return said + self.tell(decider.TimePassed())

    def answer(self, *, taken: bool | None) -> list[str]:
        return self.tell(approvals.ApprovalAnswered(self.approvals[-1].request, taken))

    def hear(self, *prepared: str) -> list[str]:
        return self.tell(approvals.PeersAnswered(self.asked[-1].round, frozenset(prepared)))

    def reload(self, *rules: Rule) -> list[str]:
        self.rules = rules
        return self.tell(decider.Reloaded(rules))

    def retry(self) -> list[str]:
        """Reload with a file that cannot be used, which keeps the rules."""
        return self.tell(decider.Reloaded(None))

    @property
    def phase(self) -> str:
        (case,) = self.decider.state.cases.values()
        return case.phase

    @property
    def standing(self) -> list[str]:
        return [name(effect.action) for effect in self.decider.state.effects.values()]


def read_again(journal: list[AnyRecord]) -> list[AnyRecord]:
    """Return records as a journal gives them back: through their bytes."""
    return [msgspec.json.decode(msgspec.json.encode(record), type=AnyRecord) for record in journal]


def seen(*prepare: dict[str, Any], **given: Any) -> Bench:
    """Return a bench with one rule, which has seen one event."""
    bench = Bench(rule(*prepare, **given))
    bench.see(event())
    return bench
