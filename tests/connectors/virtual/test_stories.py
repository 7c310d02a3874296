"""The decider for libvirt's hosts in stories: texts of one verb a line, and their verbs.

What comes of a line stands behind an arrow: `run -> done at h2` is an end and the machine's host,
`step -> wait for 0.5` a step by itself at 100 s, whose past is as it says, in seconds ago. A story
with `acts` or `ways` is told of each of these, or of all: `order each`, `way=each`.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import pytest

import stories
from connectors.virtual.hosts import EARLY, ORDER, VM_ID, Copy, Host, Hosts, Timer, order, pair
from forewarn.connectors.libvirt import decide, program
from forewarn.connectors.libvirt.decide import (
    JOB_IN_THE_WAY,
    MAX_FAILURES,
    Do,
    Failure,
    Past,
    Step,
)
from forewarn.connectors.libvirt.facts import (
    Act,
    DomainState,
    HostSight,
    Marker,
    MarkerPhase,
    MoveBy,
    Order,
    marker_of,
    order_of,
)

FILE: Final = Path(__file__).with_name("stories.txt")
EACH: Final = {"acts": list(Act), "ways": list(MoveBy)}
NOW: Final = 100.0
COPY: Final = {each.name for each in fields(Copy)} - {"state"}
SPELLED: Final = {"ignores": "presses_ignored", "restarts": "restarts_on_poweroff"}
AGO: Final = {"pressed_first", "pressed_last", "paused_at", "waiting_since"}


def told() -> Iterator[Any]:
    """Return each story, with each act or way that it is told of."""
    for title, rows in stories.stories(FILE.read_text(encoding="utf-8")).items():
        kinds = [stories.split(row) for _, row in rows if row.split(" ")[0] in EACH]
        named = [words or EACH[verb] for verb, words, _ in kinds]
        for each in named[0] if named else [""]:
            yield pytest.param(rows, each, id=f"{title} {each}".strip())


class Story:
    """A story so far: the hosts, the order, and the last end or step."""

    def __init__(self, each: str) -> None:
        self.each = each
        self.asked = ORDER
        self.markers: dict[str, Marker] = {}
        self.failures: list[Failure] = []
        self.last: Any = None
        self.begin()

    def begin(self) -> None:
        """Have the hosts of the beginning."""
        self.clock = Timer()
        self.hosts = Hosts([Host("h1", Copy()), Host("h2")], self.clock)

    def carry_out(self, row: str) -> None:
        """Carry a line out, and compare what comes of it."""
        line, _, follows = row.partition(" -> ")
        verb, words, options = stories.split(line)
        if verb in HAPPENS:
            happens = row.split(" ", 2)[2]
            HAPPENS[verb](self, words[0], lambda: self.carry_out(happens))
        elif verb and verb not in EACH:
            act = VERBS.get(verb) or getattr(Story, verb.replace("-", "_"))
            act(self, *words, **options)
            if follows:
                self.compare(follows)

    def compare(self, follows: str) -> None:
        """Compare the last end or step: what is done, and where or for how long if that is said."""
        said, _, seconds = follows.partition(" for ")
        do, _, host = said.partition(" at ")
        assert self.last.do == do, self.last
        if host:
            assert (self.last.host or "nowhere") == host
        if seconds:
            assert self.last.seconds == float(seconds)

    def host(self, name: str, machine: str = "", **facts: str) -> None:
        """Say how a host is, and its copy of the machine."""
        if name not in [each.name for each in self.hosts.hosts]:
            self.hosts.hosts.append(Host(name))
        host = self.hosts[name]
        if machine:
            host.copy = None if machine == "none" else Copy(DomainState(machine))
        marked = facts.pop("marked", "")
        for told, text in (facts | ({"live": marked, "config": marked} if marked else {})).items():
            fact = SPELLED.get(told, told)
            of: Any = host.copy if fact in COPY else host
            assert hasattr(of, fact), fact
            setattr(of, fact, self.markers[text] if fact in {"live", "config"} else value_of(text))

    def autostart(self, name: str) -> None:
        copy = self.hosts[name].copy
        assert copy is not None
        assert copy.state is DomainState.OFF
        copy.state, copy.live = DomainState.RUNNING, copy.config

    def marker(self, name: str, phase: str = "begun", **facts: str) -> None:
        """Write down a marker, of this operation but for what is said."""
        usual = Marker(operation="1.1", started_at=EARLY, attempt=1, phase=MarkerPhase(phase))
        self.markers[name] = replace(usual, **{key: value_of(text) for key, text in facts.items()})

    def order(self, act: str, **facts: str) -> None:
        """Say what is asked for."""
        given: dict[str, Any] = {name: value_of(text) for name, text in facts.items()}
        if "way" in facts:
            given["way"] = MoveBy(self.each if facts["way"] == "each" else facts["way"])
        if "closed_hosts" in facts:
            given["closed_hosts"] = frozenset(stories.listed(facts["closed_hosts"]))
        self.asked = replace(ORDER, act=Act(self.each if act == "each" else act), **given)

    def refuse(self, do: str, code: str, message: str, times: str = "1") -> None:
        """Have libvirt refuse a step, once or so many times."""
        refused = self.hosts.refusals.setdefault(step_of(do), [])
        refused += [(int(code), message)] * int(times)

    def stop_at(self, seconds: str) -> None:
        """Have the run's time be over then."""
        self.hosts.timer.over = float(seconds)

    def run(self) -> None:
        """Carry the order out."""
        self.last = program.carry_out(self.asked, self.hosts, self.hosts.timer)

    def check(self) -> None:
        """Find out by looks alone if it was done."""
        self.last = program.check_done(self.asked, self.hosts, self.hosts.timer)

    def failed(
        self, do: str, host: str, message: str, ago: str, code: str = "1", times: str = "1"
    ) -> None:
        """Have the next `step` look back on a failure."""
        at = NOW - float(ago)
        failure = Failure(do=step_of(do), host=host, code=int(code), message=message, at=at)
        self.failures += [failure] * int(times)

    def step(self, notes: str = "", **past: str) -> None:
        """Decide on one step, with the past of a run."""
        known = {
            name: NOW - float(text) if name in AGO else value_of(text)
            for name, text in past.items()
        }
        noted = (notes,) if notes else ()
        whole = Past(now=NOW, failures=tuple(self.failures), notes=noted, **known)
        self.last = decide.decide(self.asked, self.hosts.look(self.asked), whole)
        self.failures = []

    def expect(self, what: str, *expected: str) -> None:
        """Compare what is known by now."""
        steps = [step.do.replace(" ", "-") for step in self.hosts.done]
        match what:
            case "says":
                assert all(part in self.last.message for part in expected), self.last.message
            case "says-not":
                assert expected[0] not in self.last.message
            case "says-something" | "says-nothing":
                assert bool(self.last.message) is (what == "says-something")
            case "marks":
                known = self.last.live
                assert (known.phase, known.source, known.target)[: len(expected)] == expected
                assert self.last.config == known
            case "steps":
                assert steps == list(expected)
            case "count":
                assert steps.count(expected[0]) == int(expected[1])
            case "lasts":
                least, most = [float(each) for each in (*expected, "inf")][:2]
                assert least <= self.hosts.timer.time < most
            case "boots":
                assert [copy.boots for _, copy in self.hosts.copies] == [int(expected[0])]
            case "disks-deleted":
                assert self.hosts.disks_deleted
            case "copies":
                assert [name for name, _ in self.hosts.copies] == list(expected)
            case _:
                assert getattr(self.hosts, what) == list(expected)


def value_of(text: str) -> Any:
    """Return the value of an option: a truth, a number or a text."""
    if text in {"yes", "no"}:
        return text == "yes"
    return int(text) if text.isdecimal() else text


def step_of(do: str) -> Do:
    return Do(do.replace("-", " "))


VERBS: Final[dict[str, Callable[..., None]]] = {"hosts": Story.begin}
HAPPENS: Final[dict[str, Callable[[Story, str, Callable[[], None]], object]]] = {
    "at": lambda story, at, act: story.clock.coming.append((float(at), act)),
    "when": lambda story, _, act: story.hosts.when_off.append(act),
    "before": lambda story, do, act: story.hosts.around.update({("before", step_of(do)): act}),
    "after": lambda story, do, act: story.hosts.around.update({("after", step_of(do)): act}),
}
"""Lines of which the rest happens later."""


@pytest.mark.parametrize(("rows", "each"), [*told()])
def test_the_story_holds(rows: stories.Rows, each: str) -> None:
    assert stories.play(FILE.name, rows, Story(each).carry_out)


# Beside the stories.


def test_what_libvirt_refused_is_remembered_with_its_reason_and_not_for_ever() -> None:
    past = decide.refused(Past(now=NOW), Step(do=Do.RESUME, host="h2"), 38, "cut")
    failure = Failure(do=Do.RESUME, host="h2", code=38, message="cut", at=NOW)
    assert (past.acted, past.failures) == (True, (failure,))
    migrate = Step(do=Do.MIGRATE, host="h1")
    assert decide.refused(Past(), migrate, JOB_IN_THE_WAY, "busy").failures == ()
    assert len(decide.refused(Past(), replace(migrate, do=Do.MARK), 68, "busy").failures) == 1
    full = replace(past, failures=(failure,) * MAX_FAILURES)
    latest = decide.refused(full, migrate, 1, "no").failures
    assert (len(latest), latest[-1].do) == (MAX_FAILURES, Do.MIGRATE)


def test_a_look_changes_nothing_but_since_when_something_is_waited_for() -> None:
    for acted in (False, True):
        past = Past(now=NOW, acted=acted)
        asked_again = decide.after(past, Step(do=Do.ASK_AGAIN), order(Act.PAUSE))
        assert asked_again == replace(past, waiting_since=NOW)
        later = replace(asked_again, now=NOW + 5)
        assert decide.after(later, Step(do=Do.ASK_AGAIN), order(Act.PAUSE)) == later
        for look in decide.LOOKS - {Do.ASK_AGAIN}:
            kept = decide.after(later, Step(do=look), order(Act.PAUSE))
            assert kept == replace(later, waiting_since=None)


def test_a_clock_that_was_set_is_not_set_again() -> None:
    set_ = decide.after(Past(), Step(do=Do.SYNC_TIME, host="h1"), order(Act.PAUSE))
    assert (set_.time_set, set_.acted) == (True, True)


def test_no_end_is_decided_on_one_look() -> None:
    class Moving(Hosts):
        """The machine has moved between the first look at the one host and at the other."""

        def look(self, asked: Order, only: str = "") -> tuple[HostSight, ...]:
            sights = super().look(asked, only)
            return sights if self.looks > 1 else tuple(replace(s, domain=None) for s in sights)

    hosts = Moving(pair().hosts)
    assert program.carry_out(order(Act.DELETE), hosts, hosts.timer).do is Do.DONE
    assert hosts.copies == []


def test_a_marker_is_read_as_it_was_written() -> None:
    mine = replace(order(Act.MOVE).marker(MarkerPhase.COLD), source="h1", target='a "<&> name')
    assert marker_of(mine.xml()) == mine
    for strange in ("", "<task/>", mine.xml().replace("cold", "warm"), "<task attempt='x'/>"):
        assert marker_of(strange) is None


@pytest.mark.parametrize(
    ("event_type", "live_migration", "freeze", "expected"),
    [
        ("Freeze", False, "suspend", (Act.PAUSE, MoveBy.COLD)),
        ("Freeze", True, "suspend", (Act.MOVE, MoveBy.LIVE)),
        ("Freeze", False, "migrate", (Act.MOVE, MoveBy.LIVE)),
        ("Reboot", False, "suspend", (Act.REBOOT, MoveBy.COLD)),
        ("Redeploy", False, "suspend", (Act.MOVE, MoveBy.COLD)),
        ("Preempt", False, "suspend", (Act.DELETE, MoveBy.COLD)),
        ("Terminate", False, "suspend", (Act.DELETE, MoveBy.COLD)),
    ],
)
def test_an_event_type_is_an_act(
    event_type: str, live_migration: bool, freeze: str, expected: tuple[Act, MoveBy]
) -> None:
    given: dict[str, Any] = {"machine": "web-0", "vm_id": VM_ID, "host": "h1", "operation": "1.1"}
    given |= {"started_at": "2026-03-02T12:00:00.25Z", "attempt": 1, "again": False}
    given |= {"event_type": event_type, "live_migration": live_migration, "unforeseen": False}
    given |= {"duration_seconds": 3, "to_host": "", "closed_hosts": [], "host_boot_id": ""}
    settings: dict[str, Any] = {"redeploy": "cold", "freeze": freeze, "freeze_seconds": 5.0}
    settings |= {"shutdown_seconds": 120.0, "force": True, "retry_seconds": 300.0}
    settings |= {"delete_disks": False, "migration": {}, "hosts": []}
    asked = order_of({**given, "libvirt": settings})
    assert (asked.host, asked.act, asked.way) == ("h1", *expected)
    assert (asked.started_at, asked.pause_seconds) == (EARLY, 3)
