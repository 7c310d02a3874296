"""Requests, approvals and reports that share a commit: each is decided, and answered, by itself."""

import random
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import patience
from builders import FLEET, MINUTE
from control.conftest import Busy, done
from forewarn.connectors.port import Outcome, Task
from forewarn.maintenance import fleet_file
from forewarn.maintenance.model import Refused
from forewarn.maintenance.planner import Request
from forewarn.store import sqlite
from forewarn.vocabulary import EventStatus, EventType

FINE = Outcome(succeeded=True, message="fine")
LEASE = timedelta(seconds=60)


class Fleet(Busy):
    """A busy plane with a fleet, and an executor that claims all that has started."""

    def claim(self) -> dict[str, Task]:
        acts = done(self.plane.claim("here", LEASE, 10_000))
        return {act.operation: act for act in acts}

    def finish(self, act: Task, outcome: Outcome = FINE) -> "Future[Any]":
        return self.plane.finish(act.operation, act.attempt, outcome)

    def everything(self) -> list[Any]:
        with self.store.read() as reading:
            return [
                reading.scopes(),
                reading.machines(),
                dict(sorted(reading.operations_of_events(self._events()).items())),
                reading.maintenances(range(1, 100)),
                {(t.key, t.event_type, t.operation) for t in reading.tombstones().values()},
            ]

    def _events(self) -> set[str]:
        return {e.id for changes in self.told for o in changes.operations for e in o.events}


@pytest.fixture
def busy() -> Iterator[Fleet]:
    built = Fleet(fleet=FLEET)
    yield built
    built.close()


def test_machines_that_are_lost_in_one_turn_are_all_written_down(busy: Fleet) -> None:
    busy.ask(EventType.PREEMPT, "batch_0", "batch_1")
    busy.clock.advance(MINUTE)
    busy.plane.advance().result(patience.SECONDS)
    acts = busy.claim()
    before = busy.store.commits
    busy.hold()
    ends = [busy.finish(act) for act in acts.values()]
    busy.release()
    for end in ends:
        end.result(patience.SECONDS)
    assert busy.store.commits == before + 2
    with busy.store.read() as reading:
        last = reading.scopes()["batch"].incarnation
        left = {name: (t.scope, t.incarnation) for name, t in reading.tombstones().items()}
        assert left == {"batch_0": ("batch", last), "batch_1": ("batch", last)}
        assert last > 0


def test_each_approval_is_decided_on_what_the_ones_before_it_led_to(busy: Fleet) -> None:
    for number in range(3):
        busy.ask(EventType.REBOOT, f"web-{number}")
    events = [e.id for changes in busy.told for o in changes.operations for e in o.events]
    busy.hold()
    futures = [busy.plane.approve("web", [one], by="web-0", address="") for one in events]
    busy.release()
    operations = [future.result(patience.SECONDS)[0] for future in futures]
    assert [o.waits_for for o in operations] == ["", "1.1", "1.1"]
    started, *others = [o.status for o in operations]
    assert (started, {*others}) == (EventStatus.STARTED, {EventStatus.SCHEDULED})


def test_requests_of_one_batch_have_numbers_of_their_own_and_a_refused_one_has_none(
    busy: Fleet,
) -> None:
    def ask(machine: str) -> "Future[Any]":
        return busy.plane.request(Request(event_type=EventType.REBOOT, machines=(machine,)))

    commits = busy.store.commits
    busy.hold()
    asked = [ask(machine) for machine in ("web-0", "nobody", "web-0", "bastion")]
    busy.release()
    assert done(asked[0]).maintenance.number == 1
    for refused in asked[1:3]:
        with pytest.raises(Refused):
            done(refused)
    assert done(asked[3]).maintenance.number == 2
    assert busy.store.commits == commits + 2


def test_what_the_store_cannot_take_of_one_costs_the_others_nothing(tmp_path: Path) -> None:
    busy = Fleet(sqlite.open_store(tmp_path / "it.db"), fleet=FLEET)
    busy.ask(EventType.REBOOT, "web-0", "bastion", "firm_0", no_notice=True)
    acts = busy.claim()
    busy.hold()
    first = busy.finish(acts["1.1"])
    bad = busy.finish(acts["1.2"], Outcome(succeeded=True, message="half a \ud800 pair"))
    last = busy.finish(acts["1.3"])
    busy.release()
    assert first.result(patience.SECONDS)[0].status is EventStatus.COMPLETED
    assert last.result(patience.SECONDS)[0].status is EventStatus.COMPLETED
    with pytest.raises(UnicodeEncodeError):
        bad.result(patience.SECONDS)
    assert busy.operation("1.2").status is EventStatus.STARTED
    busy.close()


def shared_hosts() -> fleet_file.Fleet:
    """Three sets of two domains on four hosts, a low-priority scale set, and two alone."""
    sets = [
        {
            "name": name,
            "update_domains": 2,
            "machines": [
                {"name": f"{name}-{n}", "host": f"h{(n + turn) % 4}", "update_domain": n % 2}
                for n in range(4)
            ],
        }
        for turn, name in enumerate(("web", "data", "shop"))
    ]
    spot = {
        "name": "spot",
        "update_domains": 2,
        "priority": "low",
        "machines": [{"index": n, "host": f"h{n}"} for n in range(4)],
    }
    alone = [{"name": "bastion", "host": "h1"}, {"name": "vault", "host": "h2"}]
    document = {"availability_set": sets, "scale_set": [spot], "machine": alone}
    return msgspec.convert(document, fleet_file.Fleet)


def play(seed: int, *, together: bool) -> list[list[Any]]:
    """Let maintenance of every kind end, report by report or all reports of a round at once."""
    chance = random.Random(seed)
    built = Fleet(fleet=shared_hosts())
    names = [f"{s}-{n}" for s in ("web", "data", "shop") for n in range(4)] + ["bastion", "vault"]
    seen = []
    try:
        for _ in range(8):
            for _ in range(4):
                kind = chance.random()
                event_type = chance.choice([EventType.REBOOT, EventType.REDEPLOY])
                where: dict[str, Any] = {"machines": tuple(chance.sample(names, 3))}
                if kind < 0.3:
                    where = {"scope": chance.choice(["web", "data", "shop"])}
                elif kind < 0.6:
                    where = {"host": chance.choice(["h0", "h1", "h2", "h3"])}
                elif kind < 0.7:
                    event_type = EventType.PREEMPT
                    where = {"machines": (f"spot_{chance.randrange(4)}",)}
                request = Request(event_type=event_type, **where)
                built.plane.request(request).exception(patience.SECONDS)  # a refusal is as good
            with built.store.read() as reading:
                live = sorted(reading.live_operations())
            for operation in live:
                if chance.random() < 0.8:
                    built.plane.approve_for_guests([operation], by="ann").exception(
                        patience.SECONDS
                    )
            reports: list[tuple[str, int, Outcome | None]] = []
            for act in built.claim().values():
                hosts = {act.machines[0]: f"h{chance.randrange(4)}"}
                outcome = Outcome(
                    succeeded=chance.random() < 0.8,
                    hosts=hosts if act.event_type is EventType.REDEPLOY else {},
                )
                stale = act.attempt - (chance.random() < 0.1)
                doubted = chance.random() < 0.1
                reports.append((act.operation, stale, None if doubted else outcome))
            chance.shuffle(reports)
            report(built, reports, together=together)
            built.clock.advance(2 * LEASE)
            seen.append(built.everything())
    finally:
        built.close()
    return seen


def report(built: Fleet, reports: list[tuple[str, int, Outcome | None]], *, together: bool) -> None:
    if together:
        built.hold()
    futures = []
    for operation, attempt, outcome in reports:
        if outcome is None:
            future: Future[Any] = built.plane.report_unknown(operation, attempt, "lost")
        else:
            future = built.plane.finish(operation, attempt, outcome)
        if not together:
            future.exception(patience.SECONDS)
        futures.append(future)
    built.release()
    for future in futures:
        error = future.exception(patience.SECONDS)
        assert error is None or isinstance(error, Refused), error


@pytest.mark.parametrize("seed", range(12))
def test_together_they_come_to_what_they_would_come_to_one_by_one(seed: int) -> None:
    assert play(seed, together=True) == play(seed, together=False)
