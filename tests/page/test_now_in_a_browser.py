"""Now after two hours of maintenance over some 500 machines, as Chromium draws it.

With IMAGES=docs/images in the environment, the pictures of the docs are made.
"""

import itertools
import os
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from playwright.sync_api import Page, expect

from builders import MINUTE, mint
from forewarn.clock import ManualClock
from forewarn.control.changefeed import Changefeed
from forewarn.control.plane import Plane
from forewarn.control.writer import Writer
from forewarn.maintenance.fleet_file import Fleet
from forewarn.maintenance.model import Approval, Operation, StartCause
from forewarn.server.settings import SimulatedSettings
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import AccessRole, ApproverKind, EventStatus, EventType
from page.operations import NOW, operation
from page.site import NARROW, WIDE, Chromium, Site, follow
from server.running import Running, settings_in
from store.values import with_maintenances

SEED = 34
SILENT = 17
"""Every so many machines one does not ask."""

UNAPPROVED = 0.4
"""The part of the operations that start when their notice is over."""

OVERLAPS = """() => {
  const found = [];
  for (const lane of document.querySelectorAll(".lane svg")) {
    const texts = [...lane.querySelectorAll(".event text")]
      .filter((each) => getComputedStyle(each).display !== "none")
      .map((each) => [each.textContent, each.getBoundingClientRect()]);
    texts.forEach(([name, box], n) => {
      for (const [other, at] of texts.slice(n + 1))
        if (box.left < at.right && at.left < box.right
            && box.top + 3 < at.bottom && at.top + 3 < box.bottom)
          found.push(`${name} and ${other}`);
    });
  }
  return found;
}"""
"""Labels of the timeline that lie over one another."""

OVERFLOWS = """() => document.documentElement.scrollWidth - innerWidth"""


SETS = ("api", "batch", "cache", "crawl", "db", "encode", "queue", "search", "store", "web")
FLEET = {
    "availability_set": [
        {
            "name": name,
            "update_domains": 5,
            "machines": [{"name": f"{name}-{n}", "host": f"h{n % 10}"} for n in range(46)],
        }
        for name in SETS
    ],
    "machine": [{"name": f"worker-{n}", "host": f"h{n}"} for n in range(40)],
}
LIVE = (EventStatus.SCHEDULED, EventStatus.STARTED, EventStatus.RETURNING)
OVER = (*(EventStatus.COMPLETED,) * 18, EventStatus.CANCELED, EventStatus.FAILED)


def at_random(chance: Random, number: int, status: EventStatus, **place: Any) -> Operation:
    """An operation in the last two hours; a failed one was acknowledged, except in db."""

    def before(end: datetime, longest: int) -> datetime:
        return end - timedelta(seconds=chance.randrange(60, longest))

    ended = NOW if status in LIVE else before(NOW, 6000)
    started = before(ended, 240)
    announced = before(started, 800)
    times: dict[str, Any] = {"not_before": announced + 15 * MINUTE}
    if status not in LIVE:
        times["ended_at"] = ended
    if status not in {EventStatus.CANCELED, EventStatus.SCHEDULED}:
        times |= {"started_at": started, "start_cause": StartCause.APPROVED}
        times["approval"] = Approval(kind=ApproverKind.GUEST, by=place["machines"][0], at=started)
        if chance.random() < UNAPPROVED:
            times |= {"not_before": started, "start_cause": StartCause.NOTICE_OVER}
            del times["approval"]
    if status is EventStatus.RETURNING:
        times |= {"carried_out_at": ended, "back_by": NOW + 15 * MINUTE}
    if status is EventStatus.FAILED:
        times["outcome"] = "the program ended with status 1: the array is being rebuilt"
    if status is EventStatus.FAILED and place["scope"] != "db":
        times |= {"acknowledged_by": "ann", "awaited": ()}
    kind = chance.choice((EventType.FREEZE, EventType.REBOOT, EventType.REDEPLOY))
    return operation(number, status, announced=announced, event_type=kind, **place, **times)


@pytest.fixture
def store() -> InMemoryStore:
    """Two hours of maintenance, up to now; in each scope one update domain is not over."""
    made, chance, numbers = InMemoryStore(), Random(SEED), itertools.count(1)
    plane = Plane(Writer(made, ManualClock(NOW), Changefeed()), mint("e"))
    plane.apply_fleet(msgspec.convert(FLEET, Fleet)).result()
    with made.read() as reading:
        places = defaultdict(list)
        for machine in reading.machines().values():
            places[machine.scope, machine.update_domain].append(machine)
        scopes = [replace(scope, incarnation=50) for scope in reading.scopes().values()]
    found: list[Operation] = []
    for (scope, domain), there in sorted(places.items()):
        statuses = chance.choices(OVER, k=2)
        if domain == 0 and scope in SETS:
            last = LIVE[SETS.index(scope) % len(LIVE)]
            statuses.append(EventStatus.FAILED if scope == "db" else last)
        for status in statuses:
            some = chance.sample(there, min(len(there), chance.choice((1, 2, 8))))
            place = {"scope": scope, "domain": domain, "machines": tuple(m.name for m in some)}
            hosts = tuple(sorted({machine.host for machine in some}))
            found.append(at_random(chance, next(numbers), status, hosts=hosts, **place))
    with made.write() as transaction:
        transaction.save(replace(with_maintenances(*found), scopes=tuple(scopes)))
    return made


@pytest.fixture
def town(tmp_path: Path, chromium: Chromium, store: InMemoryStore) -> Iterator[Site]:
    """A service that goes on from there, except that its clock stands."""
    simulated = SimulatedSettings(freeze_seconds=3600, reboot_seconds=3600, redeploy_seconds=3600)
    wanted = settings_in(tmp_path, simulated, listen="127.0.0.1:0")
    with store.read() as reading:
        asking = [name for number, name in enumerate(reading.machines()) if number % SILENT]
    with Running(wanted, store, ManualClock(NOW)) as running:
        for name in asking:
            running.guests.saw(name, at=NOW - timedelta(seconds=20))
        with Site(running, chromium, with_fleet=False) as opened:
            yield opened


def pictured(window: Page, name: str) -> None:
    folder = os.environ.get("IMAGES")
    if folder:
        window.screenshot(path=Path(folder) / f"page-{name}.png")


@pytest.mark.parametrize(("name", "size"), [("now-light", WIDE), ("now-390", NARROW)])
def test_nothing_overlaps_or_overflows(town: Site, name: str, size: tuple[int, int]) -> None:
    window = town.window(AccessRole.VIEWER, size)
    expect(window.locator(".timeline .event").first).to_be_visible()
    assert window.evaluate(OVERFLOWS) <= 0
    assert window.evaluate(OVERLAPS) == []
    pictured(window, name)
    for shown in ("12 h", "Day", "Week"):
        follow(window.locator(".ranges").get_by_role("link", name=shown))
        expect(window.locator(".ranges [aria-current]")).to_have_text(shown)
        assert window.evaluate(OVERLAPS) == []
