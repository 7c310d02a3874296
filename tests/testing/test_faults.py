"""Every fault on demand: what a handler sees of it, and that it passes."""

import socket

import pytest
import requests

import forewarn
import patience
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


def post(machine: EmulatedMachine, event_id: str) -> requests.Response:
    return requests.post(
        f"{machine.endpoint}/metadata/scheduledevents?api-version=2020-07-01",
        headers={"Metadata": "true"},
        json={"StartRequests": [{"EventId": event_id}]},
        timeout=patience.SECONDS,
    )


@pytest.mark.parametrize("status", [429, 410, 500, 503])
def test_a_status_comes_as_often_as_it_was_ordered(
    emulator: Emulator, web: EmulatedMachine, status: int
) -> None:
    emulator.faults("status", status=status, retry_after=7, times=2, after=1)
    answers = [get(web) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, status, status, 200]
    assert [answer.headers.get("Retry-After") for answer in answers] == [None, "7", "7", None]
    assert [exchange.fault for exchange in emulator.requests] == ["", "status", "status", ""]
    is_json = "json" in answers[1].headers["Content-Type"]
    assert is_json is (status != 429)
    assert is_json or answers[1].text == "Too many requests"


def test_a_request_is_delayed_by_the_emulators_clock(
    emulator: Emulator, web: EmulatedMachine
) -> None:
    emulator.faults("slow-start")
    with socket.create_connection(("127.0.0.1", port(web)), patience.SECONDS) as connection:
        connection.sendall(
            b"GET /vm/web-0/metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\n"
            b"Host: 127.0.0.1\r\nMetadata: true\r\n\r\n"
        )
        emulator.until(lambda: emulator.requests, patience.SECONDS)
        emulator.advance("119s")
        (exchange,) = emulator.requests
        assert (exchange.status, exchange.was_read) == (0, False)
        emulator.advance("1s")
        assert connection.recv(12) == b"HTTP/1.1 200"
    assert get(web).status_code == 200


def port(machine: EmulatedMachine) -> int:
    return int(machine.endpoint.rpartition("/vm/")[0].rpartition(":")[2])


@pytest.mark.parametrize("kind", ["cut", "half-body", "lost-answer", "unreachable"])
def test_a_connection_ends_too_early(emulator: Emulator, web: EmulatedMachine, kind: str) -> None:
    times = 3 if kind == "unreachable" else 1  # until the clock says otherwise
    emulator.faults(kind, **({"seconds": 30} if times > 1 else {}))
    for _ in range(times):
        with pytest.raises(requests.RequestException):
            get(web)
        emulator.advance("14s")
    assert get(web).status_code == 200


@pytest.mark.parametrize(("kind", "status"), [("lost-answer", "Started"), ("cut", "Scheduled")])
def test_an_approval_counts_though_its_answer_is_lost_and_not_if_it_is_cut_off(
    emulator: Emulator, web: EmulatedMachine, kind: str, status: str
) -> None:
    (event,) = emulator.events()
    emulator.faults(kind, concerns="approvals")
    with pytest.raises(requests.RequestException):
        post(web, event.event_id)
    assert event.status == status
    assert post(web, event.event_id).status_code == 200
    assert event.approved_by == "web-0"


def test_html_and_emptiness_are_called_ok(emulator: Emulator, web: EmulatedMachine) -> None:
    emulator.faults("html")
    emulator.faults("empty")
    page, nothing = get(web), get(web)
    assert (page.status_code, page.headers["Content-Type"][:9]) == (200, "text/html")
    assert page.content.startswith(b"<html>")
    assert (nothing.status_code, nothing.content) == (200, b"")


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


def test_a_fault_is_one_machines_alone_until_it_is_cleared(
    emulator: Emulator, web: EmulatedMachine
) -> None:
    other = emulator.machine("web-1")
    emulator.faults("status", machine="WEB-1", times=100)
    assert get(web).status_code == 200
    assert get(other).status_code == 503
    emulator.clear_faults()
    assert get(other).status_code == 200


def test_other_languages_bring_the_same_faults(emulator: Emulator, web: EmulatedMachine) -> None:
    place = f"{emulator.open_operators()}/v1/faults"

    def bring(**values: object) -> int:
        return requests.post(place, json=values, timeout=patience.SECONDS).status_code

    assert bring(name="azure-bad-day", seed="four") == 400
    assert bring(name="azure-bad-day", machine=0) == 400
    assert bring(name="status", machine="WEB-0") == 200
    assert get(web).status_code == 503


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("rain", {}),
        ("status", {"status": 200}),
        ("status", {"times": 0}),
        ("status", {"weather": 1}),
        ("azure-bad-day", {"times": 3}),
        ("status", {"machine": "web-9"}),
        ("azure-bad-day", {"machine": "web-9"}),
    ],
)
def test_what_means_nothing_is_refused(
    emulator: Emulator, name: str, values: dict[str, object]
) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        emulator.faults(name, **values)


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
