"""Every fault on demand: what a handler sees of it, and that it passes."""

import pytest

import forewarn
from forewarn.testing import EmulatedMachine, Emulator
from forewarn.testing.faults import PLAYBOOKS, Concerns, FaultKind, FaultPlan, named
from testing.conftest import get

QUICK = forewarn.Pace(
    poll_seconds=0.02,
    backoff_seconds=0.01,
    longest_backoff_seconds=0.02,
    longest_retry_after_seconds=0.02,
)


@pytest.fixture
def web(emulator: Emulator) -> EmulatedMachine:
    machine = emulator.machine("web-0")
    emulator.schedule("Reboot", "web-0")
    return machine


def test_documents_are_changed_and_come_back(emulator: Emulator, web: EmulatedMachine) -> None:
    right = get(web)
    document = right.json()
    (event,) = document["Events"]
    number = document["DocumentIncarnation"]
    expected = {
        "without-events": {"DocumentIncarnation": number},
        "incarnation-restarts": {**document, "DocumentIncarnation": 1},
        "incarnation-repeats": {**document, "DocumentIncarnation": number - 1},
        "lower-case": {**document, "Events": [{**event, "EventId": event["EventId"].lower()}]},
        "vanished": {"DocumentIncarnation": number + 1, "Events": []},
        "duplicates": {**document, "Events": [event, event]},
        "text-plain": document,
    }
    for kind, changed in expected.items():
        emulator.faults(kind)
        # A handler that has the document gets the changed one all the same.
        met = get(web, **{"If-None-Match": right.headers["ETag"]})
        assert met.json() == changed
        assert met.headers["Content-Type"].startswith("text/plain") is (kind == "text-plain")
        assert get(web).json() == document


def test_a_bad_day_is_its_seeds_and_lets_a_handler_through_after_three_tries() -> None:
    assert named("azure-bad-day", seed=1) == named("azure-bad-day", seed=1)
    assert named("azure-bad-day", seed=1) != named("azure-bad-day", seed=2)
    for seed in range(20):
        plan = FaultPlan()
        plan.add(named("azure-bad-day", seed=seed))
        met = []
        while plan:
            met.append(plan.next(Concerns.EVENTS, "web-0") is not None)
        assert sum(met) == 20, seed
        assert not any(all(met[start : start + 4]) for start in range(len(met) - 3)), seed


WAITS = {
    name
    for name, playbook in PLAYBOOKS.items()
    if {FaultKind.DELAY, FaultKind.UNREACHABLE} & {fault.kind for fault in playbook(0)}
}
"""Playbooks that go on when the clock is moved: the tests above move it."""


@pytest.mark.parametrize("playbook", sorted(PLAYBOOKS.keys() - WAITS))
def test_forewarns_own_client_gets_through_each_playbook(
    emulator: Emulator, web: EmulatedMachine, playbook: str
) -> None:
    (event,) = emulator.events()
    emulator.faults(playbook, seed=4)
    kinds = []
    with forewarn.Client(web.endpoint, pace=QUICK) as client:
        for change in client.watch():
            kinds.append(change.kind)
            if change.appeared and event.status == "Scheduled":
                client.approve(change.event)
                emulator.finish()
            if change.gone and event.status == "Completed":
                break
    assert kinds[0] == "appeared"
    assert event.approved_by == "web-0"
