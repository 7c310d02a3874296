"""The decider through crashes, boots, late and lost answers: whatever happens, the rules hold.

The judge looks only at what the decider was shown, what it commanded and what the actions did; it
knows nothing of the decider's own state but that the journal alone must make it again.
"""

from typing import Any

import msgspec
from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agent.bench import MARGIN, ME, START, event, read_again, service
from agent.bench import command as program
from agent.bench import rule as made
from forewarn.agent import approvals, decider
from forewarn.agent.rules import ActionOutcome
from forewarn.agent.state import (
    ActionBegun,
    ActionEnded,
    AgentState,
    AnyRecord,
    EventRetried,
    MachineBooted,
    Record,
)
from forewarn.client.event import Event

POOL = {"haproxy": {"socket": "/run/haproxy", "server": "pool/web-0"}}
QUICKLY = {"haproxy": {**POOL["haproxy"], "wait_sessions": False}}
"""The same in another way: one rule waits for the last session, another for nothing."""

RULES = (
    made(
        POOL,
        service("web", retries=1),
        program("drain", repeatable=True),
        name="reboots",
        match={"types": ["Reboot"]},
    ),
    made(
        program("once"),
        QUICKLY,
        service("db", after_boot="again"),
        name="redeploys",
        match={"types": ["Redeploy"]},
        approve="when-all-ready",
    ),
    made(
        service("web", on_failure="continue"),
        program("soft", on_failure="continue", after_boot="forget"),
        name="terminations",
        match={"types": ["Terminate"]},
        when_cut="approve",
        even_if_started=True,
    ),
    made({"log": {}}, name="freezes", match={"types": ["Freeze"]}, approve="at-once"),
    made(
        QUICKLY,
        program("drain", repeatable=True),
        name="preemptions",
        match={"types": ["Preempt"]},
        approve="never",
    ),
)
BY_TYPE = {r.match.types[0].value: r for r in RULES}
LENIENT = {
    s.settings.effect for r in RULES for s in r.prepare if s.settings.on_failure == "continue"
}
ALONE, LEADER, FOLLOWER = (ME,), (ME, "web-1"), ("web-1", ME)
STRANGERS = ("web-1", "web-2")
SEVEN = strategies.integers(0, 6)


class Done(msgspec.Struct):
    """What one action has really done to the machine."""

    begun: bool = False
    """Begun since it was undone last."""
    ways: list[Any] = []
    """The settings by which it ended well since."""
    interrupted: set[bool] = set()
    """Whether a crash met it doing (False), undoing (True), since somebody pressed or it was
    undone."""


class AnyOrder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.boot = 1
        self.journal: list[AnyRecord] = []
        self.world: dict[str, Event] = {}
        self.shown: dict[str, Event] = {}
        self.number = 0
        self.done: dict[str, Done] = {}
        self.stale: list[decider.BeginAction] = []
        self.runs: dict[int, decider.BeginAction] = {}
        self.stopped: dict[int, float] = {}
        self.asked: dict[int, approvals.AskPeers] = {}
        self.requests: dict[int, approvals.ApproveEvent] = {}
        self.agreed: set[str] = set()
        self.refused: dict[str, float] = {}
        self.cut_after: int | None = None
        self.wanted_again = False
        self.resume()

    # The shell

    def resume(self) -> None:
        self.decider = decider.Decider(RULES, MARGIN, read_again(self.journal))
        self.stale += self.runs.values()
        self.runs, self.asked, self.requests, self.stopped = {}, {}, {}, {}
        self.agreed, self.refused = set(), {}
        self.shown, self.wanted_again = {}, False
        self.tell(decider.AgentStarted(f"boot-{self.boot}"))

    def tell(self, cause: decider.Input) -> None:
        self.wanted_again |= isinstance(cause, decider.Reloaded)
        commands = self.decider.handle(cause, self.now)
        if self.cut_after is not None:
            commands, self.cut_after = commands[: self.cut_after], None
            for told in commands:
                self.carry_out(told)
            self.crash()
            return
        for told in commands:
            self.carry_out(told)
        self.wanted_again &= not self.decider.looked

    def crash(self) -> None:
        for run in self.runs.values():
            self.state_of(run).interrupted.add(run.undo)
        self.resume()

    def carry_out(self, told: decider.Output) -> None:
        match told:
            case Record():
                self.journal.append(told)
                if isinstance(told, ActionBegun) and not told.undo:
                    self.state(told.effect).begun = True
                if isinstance(told, ActionEnded):
                    self.recorded_end(told)
                if isinstance(told, EventRetried):
                    self.judge_retry(told)
                if isinstance(told, MachineBooted):
                    self.forget_by_boot()
            case decider.BeginAction():
                self.judge_begin(told)
                self.runs[told.run] = told
            case approvals.ApproveEvent():
                self.judge_approval(told)
                self.requests[told.request] = told
            case approvals.AskPeers():
                self.asked[told.round] = told
            case decider.StopAction():
                assert told.run in self.runs
                assert told.run not in self.stopped, "told once"
                self.stopped[told.run] = self.now
            case decider.ProceedAction():
                assert told.run in self.runs

    # The judge

    def key_of(self, run: decider.BeginAction) -> str:
        return run.action.settings.effect or f"{run.event.event_id}/{run.rule}/told/0"

    def state(self, key: str) -> Done:
        return self.done.setdefault(key, Done())

    def state_of(self, run: decider.BeginAction) -> Done:
        return self.state(self.key_of(run))

    def judge_begin(self, run: decider.BeginAction) -> None:
        state, key = self.state_of(run), self.key_of(run)
        terms = run.action.settings
        under_way = [self.key_of(other) for other in self.runs.values()]
        assert key not in under_way, "one at a time"
        assert terms.repeatable or run.undo not in state.interrupted, "not begun again"
        if run.undo:
            assert state.begun, "only what was done is undone"
            shown_still = self.shown.get(run.event.event_id)
            assert shown_still is None or not shown_still.concerns_me, "undone when it is gone"
            for shown in self.shown.values():
                wants = [s.settings.effect for s in BY_TYPE[shown.event_type].prepare]
                mine = shown.concerns_me and terms.effect
                assert not (mine and terms.effect in wants), "undone when all are gone"
            state.ways = []
            return
        assert run.event.event_id in self.shown, "done for what is there"
        assert terms.tells or run.event.concerns_me, "never for another machine's event"
        if run.event.status == "Started" and not terms.tells:
            again = terms.after_boot == "again"
            assert BY_TYPE[run.event.event_type].even_if_started or again
        elif not terms.tells:
            shown = self.shown[run.event.event_id]
            assert shown.starts_by is not None
            assert self.now < shown.starts_by - MARGIN, "nothing is begun too late"

    def judge_approval(self, told: approvals.ApproveEvent) -> None:
        shown = self.shown[told.event.event_id]
        governing = BY_TYPE[shown.event_type]
        assert shown.status == "Scheduled"
        assert shown.concerns_me, "never another machine's"
        assert governing.approve != "never"
        assert self.now >= self.refused.get(shown.event_id, 0.0) + approvals.REFUSED_SECONDS
        assert all(shown.event_id != r.event.event_id for r in self.requests.values())
        if governing.approve == "at-once":
            return
        if len(shown.resources) > 1:
            assert shown.resources[0] == ME, "the first approves"
            assert shown.event_id in self.agreed, "all of them are prepared"
        for step in governing.prepare:
            state = self.done.get(step.settings.effect, Done())
            lenient = governing.when_cut == "approve" and step.settings.on_failure == "continue"
            good = any(way.serves(step.settings) for way in state.ways)
            assert good or lenient, f"prepared before approved: {step}"

    def judge_retry(self, record: EventRetried) -> None:
        """Only what somebody wants is tried again; only then may what a crash cut be."""
        assert self.wanted_again
        for step in BY_TYPE[self.shown[record.event_id].event_type].prepare:
            self.state(step.settings.effect).interrupted.clear()

    @invariant()
    def the_journal_alone_makes_the_state(self) -> None:
        again, ours = AgentState(read_again(self.journal)), self.decider.state
        assert (again.boot, again.cases, again.effects) == (ours.boot, ours.cases, ours.effects)

    @invariant()
    def whoever_waits_wakes(self) -> None:
        wake = self.decider.wake_at
        assert not self.runs or wake is not None

    # What happens

    @rule(
        kind=strategies.sampled_from(sorted(BY_TYPE)),
        resources=strategies.sampled_from([ALONE, ALONE, LEADER, FOLLOWER, STRANGERS]),
        notice=strategies.sampled_from([6, 30, 300, 900]),
        started=strategies.booleans(),
    )
    @precondition(lambda self: len(self.world) < 3)
    def an_event_appears(
        self, kind: str, resources: tuple[str, ...], notice: int, started: bool
    ) -> None:
        self.number += 1
        new = event(
            f"E{self.number}",
            resources=resources,
            event_type=kind,
            starts_by=self.now + notice,
            status="Started" if started and notice == 6 else "Scheduled",
        )
        self.world[new.event_id] = new
        self.look()

    def look(self) -> None:
        self.shown = dict(self.world)
        self.tell(decider.DocumentSeen(tuple(self.world.values()), ME))

    @rule()
    def the_agent_looks(self) -> None:
        self.look()

    @rule(which=SEVEN)
    @precondition(lambda self: self.world)
    def an_event_starts(self, which: int) -> None:
        event_id = list(self.world)[which % len(self.world)]
        self.world[event_id] = msgspec.structs.replace(
            self.world[event_id], status="Started", starts_by=None
        )
        self.look()

    @rule(which=SEVEN)
    @precondition(lambda self: self.world)
    def an_event_is_gone(self, which: int) -> None:
        del self.world[list(self.world)[which % len(self.world)]]
        self.look()

    @rule(which=SEVEN)
    @precondition(lambda self: self.world)
    def the_machine_drops_out_of_an_event(self, which: int) -> None:
        event_id = list(self.world)[which % len(self.world)]
        others = tuple(name for name in self.world[event_id].resources if name != ME)
        if others and self.world[event_id].status == "Scheduled":
            self.world[event_id] = msgspec.structs.replace(
                self.world[event_id], resources=others, concerns_me=False
            )
            self.look()

    @rule(which=SEVEN, kind=strategies.sampled_from(sorted(BY_TYPE)))
    @precondition(lambda self: self.world)
    def an_event_supersedes_another(self, which: int, kind: str) -> None:
        del self.world[list(self.world)[which % len(self.world)]]
        self.an_event_appears(kind, ALONE, 30, started=False)

    @rule(
        which=SEVEN,
        outcome=strategies.sampled_from([ActionOutcome.DONE, *list(ActionOutcome)[:4]]),
    )
    @precondition(lambda self: self.runs)
    def an_action_ends(self, which: int, outcome: ActionOutcome) -> None:
        run = list(self.runs.values())[which % len(self.runs)]
        self.end(run, outcome)

    def end(self, run: decider.BeginAction, outcome: ActionOutcome) -> None:
        self.tell(decider.ActionFinished(run.run, outcome))

    def recorded_end(self, record: ActionEnded) -> None:
        """Before its end is in the journal an action counts as under way: a crash cuts it."""
        is_lenient, ways = record.effect in LENIENT, []
        for number in [n for n, run in self.runs.items() if self.key_of(run) == record.effect]:
            # By the rule that began it: two rules may share an effect, and one of them holds.
            is_lenient = self.runs[number].action.settings.on_failure == "continue"
            ways.append(self.runs.pop(number).action.settings)
            self.stopped.pop(number, None)
        given_up = record.final and is_lenient  # as if it had been undone
        if record.undo and (record.outcome is ActionOutcome.DONE or given_up):
            self.done[record.effect] = Done()
        elif record.outcome is ActionOutcome.DONE:
            self.state(record.effect).ways += ways

    @rule(which=SEVEN)
    @precondition(lambda self: self.runs)
    def an_action_finds_out(self, which: int) -> None:
        run = list(self.runs.values())[which % len(self.runs)]
        self.tell(decider.FactsFound(run.run, {"was": which}))

    @rule(which=SEVEN, outcome=strategies.sampled_from(list(ActionOutcome)[:3]))
    @precondition(lambda self: self.stale)
    def a_late_answer_comes(self, which: int, outcome: ActionOutcome) -> None:
        run = self.stale[which % len(self.stale)]
        if run.run not in self.runs:
            self.tell(decider.ActionFinished(run.run, outcome))

    @rule(which=SEVEN, taken=strategies.sampled_from([True, True, False, None]))
    @precondition(lambda self: self.requests)
    def an_approval_is_answered(self, which: int, taken: bool | None) -> None:
        request = list(self.requests)[which % len(self.requests)]
        told = self.requests.pop(request)
        if taken is False:
            self.refused[told.event.event_id] = self.now
        if not taken:
            self.agreed.discard(told.event.event_id)
        self.tell(approvals.ApprovalAnswered(request, taken))

    @rule(which=SEVEN, every=strategies.booleans())
    @precondition(lambda self: self.asked)
    def peers_answer(self, which: int, every: bool) -> None:
        number = list(self.asked)[which % len(self.asked)]
        ask = self.asked.pop(number)
        latest = max(
            r for r, a in [*self.asked.items(), (number, ask)] if a.event_id == ask.event_id
        )
        if every and number == latest:
            self.agreed.add(ask.event_id)
        self.tell(approvals.PeersAnswered(number, frozenset(ask.machines if every else ())))

    @rule(seconds=strategies.sampled_from([1, 5, 20, 61, 400]))
    def time_passes(self, seconds: int) -> None:
        until = self.now + seconds
        for _ in range(1000):
            hung = [at + 1 for at in self.stopped.values()]  # who is told to stop takes a second
            nearest = min(
                [t for t in [self.decider.wake_at, *hung] if t is not None], default=until
            )
            self.now = min(until, max(self.now, nearest))
            for number in [n for n, at in self.stopped.items() if at + 1 <= self.now]:
                if number in self.runs:
                    self.end(self.runs[number], ActionOutcome.FAILED)
            self.tell(decider.TimePassed())
            if self.now == until:
                return
        raise AssertionError("it wakes without end")

    @rule()
    def somebody_reloads(self) -> None:
        for state in self.done.values():
            state.interrupted.clear()
        self.tell(decider.Reloaded(RULES))

    @rule(after=strategies.integers(0, 5))
    def a_crash_is_near(self, after: int) -> None:
        self.cut_after = after

    @rule(boots=strategies.booleans())
    def the_agent_is_killed(self, boots: bool) -> None:
        self.boot += boots
        self.crash()

    def forget_by_boot(self) -> None:
        steps = [step for governing in RULES for step in governing.prepare]
        for step in steps:
            if step.settings.after_boot != "undo" and step.settings.effect in self.done:
                self.done[step.settings.effect] = Done()

    def teardown(self) -> None:
        """Whatever happened: when all is over and everything works, the machine is as it was."""
        self.cut_after = None
        self.world = {}
        self.look()
        for _ in range(200):
            self.somebody_reloads()
            while self.runs:
                self.end(next(iter(self.runs.values())), ActionOutcome.DONE)
            if self.decider.state.idle:
                break
            self.time_passes(1)
        assert self.decider.state.idle


AnyOrder.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestAnyOrder: Any = AnyOrder.TestCase
