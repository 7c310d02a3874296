"""The judge finds each thing that it is there to find, and nothing in a run that is whole."""

import copy
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kills import evidence, judge, phases
from kills.phases import Kill, Left, Phase
from replicas import judge as replicas

WEB = {"kind": "scope", "name": "web"}
CANCELED = {"operations": [{"id": "1.1", "status": "Canceled"}]}
EVENT = "C1BF8322-4CBF-4FC4-9C45-B40CF3106D0E"
NOW = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
REAL = 1000.0
"""The machine's time at NOW; the service's clock runs 600 times as fast."""


BACK = (999.17, 999.19, "web-0")
"""When the machine asked again, and was answered."""


class Run:
    """A run in which all is well: asked for, read of, approved, carried out."""

    def __init__(self) -> None:
        event = {
            "id": EVENT,
            "scope": "web",
            "update_domain": 0,
            "machines": ["web-0"],
            "approval": {"at": "2030-01-01T11:50:30Z"},
        }
        self.operation: dict[str, Any] = {
            "id": "1.1",
            "maintenance": 1,
            "unit": 0,
            "event_type": "Reboot",
            "hosts": ["h0"],
            "description": "ann asks 1",
            "announced_at": "2030-01-01T11:50:00Z",
            "status": "Completed",
            "outcome": "",
            "not_before": "2030-01-01T12:05:00Z",
            "started_at": "2030-01-01T11:50:30Z",
            "carried_out_at": "2030-01-01T11:51:10Z",
            "ended_at": "2030-01-01T11:52:00Z",
            "events": [event],
        }
        self.shown = {"EventId": EVENT, "EventStatus": "Scheduled"} | {
            "NotBefore": "Tue, 01 Jan 2030 12:05:00 GMT"
        }
        told = {"id": "1.1", "status": "Scheduled", "events": [event]}
        plan = {"maintenance": {"number": 1}, "operations": [told]}
        asked = {"description": "ann asks 1", "no_notice": False}
        ends = {"1.1": ["Completed", "", "2030-01-01T11:52:00Z"]}
        self.journals: dict[str, list[dict[str, Any]]] = {
            "ann": [
                entry("sends", 998.99, kind="request", asked=asked),
                answer("request", 999.0, 201, plan, asked=asked),
                entry("ends", 999.9, ends=ends),
            ],
            "guest": [
                entry("read", 998.98, scope="web", document=document(0)),
                entry("read", 999.01, scope="web", document=document(1, self.shown)),
                entry("sends", 999.045, kind="approve", events=[EVENT]),
                answer("approve", 999.06, 200, {}, events=[EVENT]),
                entry("read", 999.9, scope="web", document=document(3), asks=[BACK]),
            ],
        }
        self.runs = [ran("start", 999.07), ran("end", 999.1, status=0)]
        self.maintenances = {1: {"number": 1, "description": "ann asks 1"}}
        self.operations = {"1.1": self.operation}
        self.live: list[dict[str, Any]] = []
        self.documents = {"web": document(3)}
        self.marks = {"own-ann": "2"}

    def complaints(self) -> list[str]:
        return judge.judge(self.journals, self.runs, self.final())

    def final(self, scale: float = 600.0) -> evidence.Final:
        return evidence.Final(
            operations=self.operations,
            maintenances=self.maintenances,
            live=self.live,
            documents=self.documents,
            marks=self.marks,
            now=NOW,
            read_between=(REAL - 0.001, REAL),
            scale=scale,
        )

    def ask(self, kind: str, at: float, status: int, said: Any, **facts: Any) -> None:
        """Let ann ask for something a hundredth of a second before she is answered."""
        self.journals["ann"] += [
            entry("sends", at - 0.01, kind=kind, **facts),
            answer(kind, at, status, said, **facts),
        ]

    def turn(self, number: int, **more: Any) -> dict[str, Any]:
        """Add the operation of a further unit, in a domain of its own, that is over."""
        event = {**self.operation["events"][0], "id": f"{number}", "update_domain": number}
        turn = {
            **self.operation,
            "id": f"1.{number}",
            "unit": number - 1,
            "events": [event],
            **more,
        }
        self.operations[turn["id"]] = turn
        self.journals["ann"].append(entry("sends", 999.1, kind="vouch", events=[event["id"]]))
        for what, at in (("start", 999.2), ("end", 999.3)):
            facts = {"status": 0} if what == "end" else {}
            self.runs.append(ran(what, at, **facts) | {"operation": turn["id"]})
        return turn


def entry(what: str, at: float, **facts: Any) -> dict[str, Any]:
    read = {"began": at - 0.005, "asks": []} if what == "read" else {}
    return {"what": what, "at": at, **read, **facts}


def answer(kind: str, at: float, status: int, said: Any, **facts: Any) -> dict[str, Any]:
    return entry("answered", at, kind=kind, status=status, said=json.dumps(said), **facts)


def document(incarnation: int, *events: dict[str, Any]) -> dict[str, Any]:
    return {"DocumentIncarnation": incarnation, "Events": list(events)}


def ran(what: str, at: float, **facts: Any) -> dict[str, Any]:
    return entry(what, at, operation="1.1", machine="web-0", attempt=1, **facts)


def later(run: Run, not_before: str) -> dict[str, Any]:
    return {"operations": [{"not_before": not_before, "events": run.operation["events"]}]}


def lose_the_request(run: Run) -> None:
    run.maintenances = {}


def lose_the_operation(run: Run) -> None:
    run.operations = {}


def keep_another_request(run: Run) -> None:
    run.maintenances[1]["description"] = "bob asks 1"


def take_a_request_twice(run: Run) -> None:
    run.maintenances[2] = {"number": 2, "description": "ann asks 1"}


def lose_the_approval(run: Run) -> None:
    run.operation["events"][0]["approval"] = None
    run.operation["started_at"] = "2030-01-01T12:05:00Z"


def take_a_later_approval(run: Run) -> None:
    run.operation["events"][0]["approval"]["at"] = "2030-01-01T11:58:00Z"


def lose_the_approved_event(run: Run) -> None:
    run.operation["events"][0]["id"] = "another"


def lose_the_cancel(run: Run) -> None:
    run.ask("cancel", 999.05, 200, CANCELED, reference="1.1")


def cancel_the_maintenance_in_vain(run: Run) -> None:
    run.ask("cancel", 998.5, 200, {"operations": []}, reference="1")


def start_what_was_held(run: Run) -> None:
    run.ask("hold", 999.05, 201, {"operations": [{"id": "1.1"}]}, place=WEB)


def start_what_was_seen_after_the_hold(run: Run) -> None:
    run.ask("hold", 999.0, 201, {"operations": []}, place={"kind": "host", "name": "h0"})


def start_what_was_asked_for_after_the_hold(run: Run) -> None:
    run.journals["guest"].clear()
    run.operation["events"][0]["approval"] = None
    run.ask("vouch", 999.03, 200, {}, events=[EVENT])
    everything = {"kind": "everything", "name": ""}
    run.ask("hold", 998.98, 201, {"operations": []}, place=everything)


def start_what_was_postponed(run: Run) -> None:
    start_early(run)
    for one, at in zip(run.runs, (1000.6, 1000.7), strict=True):
        one["at"] = at
    run.ask("postpone", 999.03, 200, later(run, "2030-01-01T12:20:00Z"), reference="1.1")


def show_the_old_time_after_a_postponement(run: Run) -> None:
    run.ask("postpone", 999.0, 200, later(run, "2030-01-01T12:20:00Z"), reference="1.1")


def lose_an_operators_approval(run: Run) -> None:
    run.operation["events"][0]["approval"] = None
    run.operation["started_at"] = "2030-01-01T12:05:00Z"
    del run.journals["guest"][2:4]
    run.ask("vouch", 999.03, 200, {}, events=[EVENT])


def lose_the_fleet(run: Run) -> None:
    run.ask("fleet", 999.03, 200, {}, machine="own-ann", mark=3)


def go_on_before_the_end(run: Run) -> None:
    run.turn(2, announced_at="2030-01-01T11:51:00Z")


def go_on_beside_what_is_cancelled(run: Run) -> None:
    held = {"status": "Canceled", "ended_at": "2030-01-01T11:59:00Z"}
    run.turn(2, announced_at="2030-01-01T11:40:00Z", **held)
    run.journals["guest"][1]["document"]["Events"].append({**run.shown, "EventId": "2"})


def go_on_after_a_failure(run: Run) -> None:
    run.operation["status"] = "Failed"
    run.runs[1]["status"] = 1
    run.turn(2, status="Completed", announced_at="2030-01-01T11:53:00Z")
    run.ask("resume", 999.95, 200, {}, number=1)


def take_two_domains_down(run: Run) -> None:
    run.turn(2, announced_at="2030-01-01T11:53:00Z")
    run.runs[1]["at"] = 999.25


def go_down_before_the_other_is_back(run: Run) -> None:
    run.turn(2, announced_at="2030-01-01T11:53:00Z")
    run.operation["ended_at"] = "2030-01-01T11:52:50Z"
    run.journals["ann"][2]["ends"]["1.1"][2] = "2030-01-01T11:52:50Z"


def go_down_after_a_failure(run: Run) -> None:
    fail(run)
    run.turn(2, status="Completed", announced_at="2030-01-01T11:53:00Z")
    run.ask("resume", 999.1, 200, {}, number=1)


def fail(run: Run) -> None:
    run.operation["status"] = "Failed"
    run.operation["carried_out_at"] = None
    run.runs[1]["status"] = 1
    run.journals["ann"][2]["ends"]["1.1"][0] = "Failed"


def end_before_a_machine_asks(run: Run) -> None:
    run.journals["guest"][4]["asks"] = [(999.21, 999.22, "web-0")]


def show_two_domains(run: Run) -> None:
    run.turn(2, announced_at="2030-01-01T11:53:00Z")
    other = {**run.shown, "EventId": "2", "NotBefore": ""}
    run.journals["guest"][1]["document"]["Events"].append(other)


def start_early(run: Run) -> None:
    del run.journals["guest"][2:4]


def start_before_the_approval(run: Run) -> None:
    run.runs[0]["at"] = 999.04


def repeat_the_act(run: Run) -> None:
    run.runs.append(ran("start", 999.2) | {"attempt": 2})


def act_for_nothing(run: Run) -> None:
    run.runs.append(ran("start", 999.2) | {"operation": "9.1"})


def act_on_a_stranger(run: Run) -> None:
    run.runs.append(ran("start", 999.2) | {"machine": "data-0"})


def change_the_outcome(run: Run) -> None:
    run.journals["ann"][2]["ends"]["1.1"] = ["Failed", "late", "2030-01-01T11:52:00Z"]


def deny_the_program(run: Run) -> None:
    run.runs[1]["status"] = 1


def complete_without_the_program(run: Run) -> None:
    run.runs.clear()


def turn_the_incarnation_back(run: Run) -> None:
    run.journals["guest"][4]["document"] = document(0)


def show_an_older_document_at_the_end(run: Run) -> None:
    run.documents["web"] = document(2)


def give_an_incarnation_two_contents(run: Run) -> None:
    run.journals["other"] = [entry("read", 999.02, scope="web", document=document(1))]


def never_end(run: Run) -> None:
    run.operation["status"] = "Started"
    del run.journals["ann"][2]


def keep_an_event_alive(run: Run) -> None:
    run.live.append({"id": EVENT, "operation": "1.1", "status": "Started"})


def keep_an_event_in_the_document(run: Run) -> None:
    run.documents["web"]["Events"].append({"EventId": EVENT})


def fail_within(run: Run) -> None:
    run.journals["ann"].append(entry("odd", 999.5, status=500, said="internal"))


FAULTS: dict[Callable[[Run], None], str] = {
    lose_the_request: "maintenance 1, and it is not there",
    lose_the_operation: "operation 1.1, and it is gone",
    keep_another_request: "and is 'bob asks 1'",
    take_a_request_twice: "asked for once and is there 2 x",
    lose_the_approval: "there is no approval",
    take_a_later_approval: "the approval that is there is of 2030-01-01T11:58:00Z",
    lose_the_approved_event: "there is no such event",
    lose_the_cancel: "was answered 200, and 1.1 is Completed",
    cancel_the_maintenance_in_vain: "was answered 200, and 1.1 was announced after that",
    start_what_was_held: "1.1, which had not started, was carried out 0.020 s later, unreleased",
    start_what_was_seen_after_the_hold: "was carried out 0.070 s later, unreleased",
    start_what_was_asked_for_after_the_hold: "was carried out 0.090 s later, unreleased",
    start_what_was_postponed: "before its NotBefore 2030-01-01 12:20:00+00:00",
    show_the_old_time_after_a_postponement: "guest read 2030-01-01 12:05:00+00:00 after that",
    lose_an_operators_approval: "there is no approval",
    lose_the_fleet: "a fleet with mark 3 of own-ann was answered 200, and it has 2",
    go_on_before_the_end: "1.2 was announced before 1.1 had ended",
    go_on_beside_what_is_cancelled: "1.1 was announced before 1.2 had ended",
    go_on_after_a_failure: "1.2 was announced although 1.1 is Failed, and nobody had asked",
    take_two_domains_down: "1.1 and 1.2 had domains 0 and 2 of web down",
    go_down_before_the_other_is_back: "1.2 went down before 1.1 was back",
    go_down_after_a_failure: "nobody had acknowledged the failure of 1.1",
    end_before_a_machine_asks: "and no machine had asked",
    show_two_domains: "guest read of two update domains of web",
    start_early: "before its NotBefore 2030-01-01 12:05:00+00:00",
    start_before_the_approval: "unapproved",
    repeat_the_act: "1.1 was done 2 x to web-0, by attempts [1, 2]",
    act_for_nothing: "the program ran for 9.1, and there is no such operation",
    act_on_a_stranger: "which it does not concern",
    change_the_outcome: "1.1 has 2 outcomes",
    deny_the_program: "1.1 is Completed, and its program ended {'web-0': [1]}",
    complete_without_the_program: "its program ended for []",
    turn_the_incarnation_back: "read incarnation 0 of web after 1",
    show_an_older_document_at_the_end: "and at the end it is 2",
    give_an_incarnation_two_contents: "read it before with",
    never_end: "1.1 has not ended: it is Started",
    keep_an_event_alive: f"event {EVENT} of 1.1 is still Started",
    keep_an_event_in_the_document: "the document of web still shows",
    fail_within: "ann was answered 500",
}


def test_a_run_that_is_whole_is_not_complained_of() -> None:
    assert Run().complaints() == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_each_fault_is_told(fault: Callable[[Run], None]) -> None:
    run = Run()
    fault(run)
    told = run.complaints()
    assert any(FAULTS[fault] in complaint for complaint in told), told


@pytest.mark.parametrize(("seconds", "told"), [(1.9, False), (2.1, True)])
def test_an_approval_is_as_old_as_its_answer_as_far_as_replicas_clocks_agree(
    seconds: float, told: bool
) -> None:
    run = Run()
    answered = NOW - timedelta(seconds=REAL - 999.06)
    at = (answered + timedelta(seconds=seconds)).isoformat()
    run.operation["events"][0]["approval"]["at"] = at
    for each in run.journals["guest"]:
        each["replica"] = 0
    complaints = replicas.judge(run.journals, run.runs, [run.final(scale=1.0)])
    assert any("the approval that is there" in each for each in complaints) is told


def test_what_happened_without_notice_may_start_at_once() -> None:
    run = Run()
    start_early(run)
    run.journals["ann"][0]["asked"]["no_notice"] = True
    assert run.complaints() == []


@pytest.mark.parametrize(
    ("started_at", "told"),
    [
        ("2030-01-01T11:50:20Z", False),
        ("2030-01-01T11:50:30Z", False),
        ("2030-01-01T11:50:31Z", True),
    ],
)
def test_what_had_started_goes_on_though_something_comes_without_notice(
    started_at: str, told: bool
) -> None:
    run = Run()
    go_down_before_the_other_is_back(run)
    run.journals["ann"][0]["asked"]["no_notice"] = True
    run.operations["1.2"] |= {"description": "ann asks 2", "started_at": started_at}
    assert ("1.2 went down before 1.1 was back" in run.complaints()) is told


def test_notice_that_ran_out_needs_no_approval() -> None:
    run = Run()
    start_early(run)
    for one, at in zip(run.runs, (1000.6, 1000.7), strict=True):
        one["at"] = at
    assert run.complaints() == []


def test_an_approval_of_what_has_started_leaves_no_trace() -> None:
    run = Run()
    run.operation["events"][0]["approval"] = None
    assert run.complaints() == []


def test_what_is_held_gives_way_to_later_units_and_may_be_cancelled_unannounced() -> None:
    run = Run()
    go_on_beside_what_is_cancelled(run)
    run.journals["guest"][1]["document"]["Events"].pop()
    assert not [said for said in run.complaints() if "had ended" in said]


def test_a_hold_that_may_have_been_released_by_then_is_kept() -> None:
    for sent in (999.06, 999.045):
        run = Run()
        start_what_was_held(run)
        run.ask("release", sent + 0.01, 200, {}, place=WEB)
        assert run.complaints() == []


def test_a_hold_of_another_place_and_one_that_was_never_answered_hold_nothing() -> None:
    run = Run()
    held = {"operations": [{"id": "1.1"}]}
    run.ask("hold", 999.05, 201, held, place={"kind": "scope", "name": "data"})
    run.ask("hold", 999.05, 409, {}, place=WEB)
    run.journals["ann"].append(entry("unanswered", 999.05, kind="hold", first=999.0, place=WEB))
    assert run.complaints() == []


def test_what_was_on_its_way_when_the_hold_was_answered_may_be_carried_out() -> None:
    run = Run()
    run.ask("hold", 999.05, 201, {"operations": []}, place=WEB)
    assert run.complaints() == []


def test_what_was_postponed_may_start_by_an_approval() -> None:
    run = Run()
    run.ask("postpone", 999.03, 200, later(run, "2030-01-01T12:20:00Z"), reference="1.1")
    assert run.complaints() == []


def test_a_unit_has_its_turn_when_the_one_before_has_ended_well() -> None:
    run = Run()
    run.turn(2, announced_at="2030-01-01T11:53:00Z")
    assert run.complaints() == []


def test_a_unit_has_its_turn_when_the_machines_before_it_had_left_the_host() -> None:
    run = Run()
    run.operation |= {"status": "Canceled", "started_at": None, "carried_out_at": None}
    run.operation["outcome"] = "its machines have left host h0"
    run.journals["ann"][2]["ends"]["1.1"][:2] = ["Canceled", run.operation["outcome"]]
    run.runs.clear()
    run.turn(2, status="Completed", outcome="", announced_at="2030-01-01T11:53:00Z")
    assert not any("1.2 was announced" in complaint for complaint in run.complaints())
    run.operation["outcome"] = "changed my mind"
    assert any("1.2 was announced" in complaint for complaint in run.complaints())


def test_a_unit_has_its_turn_after_a_failure_by_an_operators_word() -> None:
    run = Run()
    go_down_after_a_failure(run)
    run.ask("acknowledge", 999.15, 200, {}, references=["1.1"])
    assert run.complaints() == []


def test_a_preemption_may_fail_beside_what_had_started_and_not_begun() -> None:
    run = Run()
    go_down_after_a_failure(run)
    assert run.complaints() != []
    run.operation["event_type"] = "Preempt"
    run.operations["1.2"]["started_at"] = run.operation["started_at"]
    assert not any("nobody had acknowledged" in each for each in run.complaints())


def test_a_unit_has_its_turn_when_another_operation_has_brought_the_failed_machines_back() -> None:
    run = Run()
    go_down_after_a_failure(run)
    run.turn(3, status="Completed", unit=None)
    for one, at in zip(run.runs[-2:], (999.14, 999.16), strict=True):
        one["at"] = at
    run.operations["1.3"] |= {"ended_at": "2030-01-01T11:51:50Z", "carried_out_at": None}
    run.operations["1.3"]["events"][0]["update_domain"] = 0
    assert run.complaints() == []


def test_a_machine_that_does_not_come_back_fails_what_its_program_completed() -> None:
    run = Run()
    run.operation["status"] = "Failed"
    run.journals["ann"][2]["ends"]["1.1"][0] = "Failed"
    assert run.complaints() == []


def test_a_kill_is_counted_once_in_each_phase_of_its_acts() -> None:
    left = {
        "1.1": Left("Started", claimed=False, machines=1),
        "2.1": Left("Started", claimed=True, machines=1),
        "3.1": Left("Started", claimed=True, machines=2),
        "4.1": Left("Started", claimed=True, machines=1),
        "5.1": Left("Completed", claimed=False, machines=1),
        "6.1": Left("Failed", claimed=False, machines=1),
        "7.1": Left("Scheduled", claimed=False, machines=1),
        "8.1": Left("Canceled", claimed=False, machines=1),
        "9.1": Left("Returning", claimed=False, machines=1),
        "10.1": Left("Queued", claimed=False, machines=1),
    }
    runs = [
        {"what": what, "operation": operation}
        for what, operation in (("start", "3.1"), ("end", "3.1"), ("start", "4.1"), ("end", "4.1"))
    ]
    assert phases.of_kill(left, {"6.1"}, runs) == dict.fromkeys(Phase, 1)


def test_a_kill_falls_in_a_request_that_had_begun_and_was_never_answered() -> None:
    kill = Kill(before=10.0, after=10.1, aim="", fresh=True, phases={})
    broken = {"what": "unanswered", "first": 9.9, "at": 10.2}
    assert phases.in_request(kill, [[], [broken]])
    for other in (
        broken | {"first": 10.05},
        broken | {"at": 9.95},
        broken | {"what": "answered"},
    ):
        assert not phases.in_request(kill, [[copy.deepcopy(other)]])
