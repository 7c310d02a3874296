"""What Now shows, made of what was counted: tiles, lines, progress and the map of the fleet."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

import builders
from forewarn.maintenance import model
from forewarn.maintenance.alerts import Alert, AlertKind
from forewarn.maintenance.units import MaintenanceState, UnitState
from forewarn.server.operator.inventory import Inventory
from forewarn.server.page import fleet_map, now, rendering
from forewarn.server.page import maintenance as maintenance_page
from forewarn.server.page.fleet_map import Condition
from forewarn.server.page.rendering import Renderer
from forewarn.server.page.timeline import Range
from forewarn.store.port import StoreUnavailable
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import ApproverKind, EventStatus, ScopeKind
from page.operations import NOW, machine, operation
from store.values import with_maintenances
from stories import Rows, Told, stories_beside

MINUTE = timedelta(minutes=1)
TIMES = {"not_before", "held_at", "started_at"}


def scopes(*names: str, kind: ScopeKind = ScopeKind.AVAILABILITY_SET) -> dict[str, model.Scope]:
    return {name.lower(): model.Scope(name=name, kind=kind, update_domains=5) for name in names}


def maintenance(*states: UnitState, number: int = 7, state: str = "running") -> model.Maintenance:
    made = builders.maintenance(*(f"h{n}" for n in range(len(states))))
    units = tuple(replace(one, state=of) for one, of in zip(made.units, states, strict=True))
    return replace(made, number=number, state=MaintenanceState(state), units=units)


class Page:
    """Now over a fleet of the test's."""

    def __init__(self, machines: list[model.Machine], *operations: model.Operation) -> None:
        self.machines: dict[str, model.Machine] = {}
        self.seen: dict[str, model.Sighting] = {}
        self.machines.update((each.key, each) for each in machines)
        self.inventory = Inventory(self.machines, self.seen.get)
        known = scopes(*{each.scope for each in machines}, "Web").values()
        self.inventory.learn(model.Changes(scopes=tuple(known), operations=operations))
        over = [one for one in operations if not one.live]
        self.over = now.EndedOperations(
            operations=tuple(over), day=Counter(one.status for one in over)
        )
        self.page = now.NowPage(self.seen.get)

    def made(
        self, found: Sequence[Alert] = (), opened: tuple[model.Maintenance, ...] = ()
    ) -> dict[str, Any]:
        snapshot = self.inventory.snapshot()
        return self.page.made(snapshot, self.over, found, opened, now=NOW, shown=Range.TWO_HOURS)

    def ask(self, name: str, ago: timedelta = timedelta(0)) -> None:
        self.seen[name] = model.Sighting(asked_at=NOW - ago, version="2020-07-01")


class Story(Told):
    """A story of Now so far, in now.txt: what there is, by one verb a line, and what is shown."""

    def __init__(self) -> None:
        self.page = Page([])
        self.alerts: list[Alert] = []
        self.opened: list[model.Maintenance] = []

    @property
    def made(self) -> dict[str, Any]:
        return self.page.made(self.alerts, tuple(self.opened))

    def there_are(self, machines: str, *operations: str) -> None:
        """Have so many machines, and operations: number, status, facts."""
        known = [machine(f"m{n}") for n in range(int(machines))]
        self.page = Page(known, *map(self.operation, operations))

    def operation(self, told: str) -> model.Operation:
        number, status, *facts = told.split()
        more: dict[str, Any] = dict(fact.split("=") for fact in facts)
        for name in TIMES & more.keys():
            more[name] = NOW + int(more[name]) * MINUTE
        for name in {"machines", "arrived"} & more.keys():
            more[name] = tuple(more[name].split(","))
        return operation(int(number), EventStatus(status), **more)

    def maintenance(self, *states: str, **more: str) -> None:
        self.opened.append(maintenance(*map(UnitState, states), **more))

    def asked(self, name: str, minutes_ago: str) -> None:
        self.page.ask(name, int(minutes_ago) * MINUTE)

    def alert(self, kind: str, about: str, minutes_ago: str = "0") -> None:
        at = NOW - int(minutes_ago) * MINUTE
        self.alerts.append(Alert(AlertKind(kind), about, "said so", at))

    def forget(self) -> None:
        self.alerts, self.opened = [], []

    def tiles(self, **told: str) -> None:
        """Compare facts of the tiles."""
        assert {name: str(self.made["tiles"][name]) for name in told} == told

    def squares(self, number: str, **conditions: str) -> None:
        """Compare how many squares the map has, and those that stand out."""
        blocks = self.made["map"].blocks
        assert sum(row.count for block, _ in blocks for row in block.rows) == int(number)
        marks = {mark.machine: mark.condition.value for _, marks in blocks for mark in marks}
        assert marks == conditions

    def comes(self, name: str) -> None:
        """Another machine is in the fleet."""
        added = self.page.machines[name] = machine(name)
        self.page.inventory.learn(model.Changes(machines=(added,)))

    def shows(self, *texts: str, lacks: str = "\0") -> None:
        template = rendering.environment().get_template("_now.html")
        html = template.render(now=NOW, **self.made)
        assert [text for text in texts if text not in html] == []
        assert lacks not in html

    def lists(self, *alerts: str, folded: str = "") -> None:
        """Compare the alerts: what each is about, where it leads, and `!` if it is grave."""
        made = self.made
        told = []
        for line in made["alerts"]:
            mark = "!" if line.alert.kind in now.GRAVE else ""
            told.append(f"{line.alert.about}{mark} {line.href}".strip())
        assert told == [*alerts]
        assert ",".join(line.alert.about for line in made["folded_alerts"]) == folded

    def orders(self, *orders: str) -> None:
        """Compare the order that ends each alert."""
        lines = self.made["alerts"]
        assert [f"{line.action} {line.order}".strip() for line in lines] == [*orders]

    def coming(self, *lines: str) -> None:
        """Compare what is under way and what is next: a word, and since or until when."""
        told = []
        for one, _, word, since, until in self.made["coming"]:
            times = [f"{(at - NOW) / MINUTE:+.0f}" for at in (since, until) if at is not None]
            told.append(" ".join([one.id, word, *times]))
        assert told == [*lines], told

    def progress(self, **counts: str) -> None:
        """Compare the units of the one maintenance by their state."""
        ((_, _, found),) = self.made["progress"]
        assert {str(state): str(count) for state, count in found.items()} == counts


@pytest.mark.parametrize("rows", stories_beside(__file__, "now.txt"))
def test_the_story_holds(rows: Rows) -> None:
    assert Story().play("now.txt", rows)


def test_a_large_fleet_is_looked_at_in_turns() -> None:
    keys = [f"m{n}" for n in range(5000)]
    seen = {key: model.Sighting(asked_at=NOW, version="2020-07-01") for key in keys[:2500]}
    listening = now.Listening(seen.get)
    listening.begin(keys)
    looks = []
    for _ in range(3):
        listening.look(NOW)
        looks.append((listening.looked_at, listening.count))
    assert looks == [(2000, 2000), (4000, 2500), (5000, 2500)]
    seen.clear()
    for _ in range(3):
        listening.look(NOW)
    assert listening.count == 0


def test_of_very_many_alerts_operations_and_maintenances_the_rest_is_a_number() -> None:
    found = [Alert(AlertKind.FAILED, f"{n}.1", "failed", NOW) for n in range(now.MAX_ALERTS + 7)]
    going = [maintenance(UnitState.RUNNING, number=n) for n in range(9)]
    made = Page([], *(operation(n) for n in range(1, 40))).made(found, opened=tuple(going))
    assert len(made["alerts"]) + len(made["folded_alerts"]) == now.MAX_ALERTS
    assert len(made["coming"]) == now.MAX_NEXT
    assert [one.number for one, *_ in made["progress"]] == [8, 7, 6, 5, 4]
    more = [made[f"more_{name}"] for name in ("alerts", "coming", "progress")]
    assert more == [7, 39 - now.MAX_NEXT, 4]


# Many windows.


class Desk:
    """The part of the backend that Now asks."""

    def __init__(self, page: Page) -> None:
        self.inventory = page.inventory
        self.over = page.over
        self.reads = 0
        self.maintenances = SimpleNamespace(open={})
        self.time = NOW
        self.away = False

    def now(self) -> datetime:
        return self.time

    async def read(self, question: Any) -> Any:
        if self.away:
            raise StoreUnavailable("the disk is full")
        self.reads += 1
        return self.over

    async def alerts(self, moment: datetime) -> list[Alert]:
        return []


@pytest.fixture
def page() -> Page:
    """Now over one machine, which has notice."""
    return Page([machine("m0")], operation(1, machines=("m0",)))


@pytest.fixture
def desk(page: Page) -> Desk:
    return Desk(page)


@pytest.fixture
def shared(desk: Any) -> Iterator[now.RenderedNow]:
    renderer = Renderer()
    yield now.RenderedNow(desk, renderer)
    renderer.close()


async def test_the_store_is_read_again_only_when_something_is_over_or_a_minute_has_passed(
    page: Page, desk: Desk, shared: now.RenderedNow
) -> None:
    for status, reads in ((EventStatus.STARTED, 1), (EventStatus.COMPLETED, 2)):
        changes = model.Changes(operations=(operation(1, status, machines=("m0",)),))
        page.inventory.learn(changes)
        shared.learn(changes)
        for _ in range(2):
            await shared.html(Range.TWO_HOURS)
            assert desk.reads == reads
    desk.time += now.MINUTE
    await shared.html(Range.TWO_HOURS)
    assert desk.reads == 3


async def test_without_the_store_a_page_shows_memory(desk: Desk, shared: now.RenderedNow) -> None:
    desk.away = True
    assert "/operations/1.1" in await shared.html(Range.TWO_HOURS)


# The map.


@pytest.mark.parametrize("seed", range(5))
def test_each_machine_has_a_square_of_its_own(seed: int) -> None:
    chance = random.Random(seed)
    found = [
        machine(f"m{n}", f"s{chance.randrange(12)}", chance.randrange(4))
        for n in range(chance.choice((1, 300, fleet_map.MAX_SQUARES)))
    ]
    sizes = Counter((each.scope, each.update_domain) for each in found)
    where = fleet_map.layout(found, sizes, scopes(*{each.scope for each in found}))
    spots = list(where.spots.values())
    assert len(set(spots)) == len(spots) == len(found)
    for block, row, column in spots:
        assert column < where.blocks[block].rows[row].count <= fleet_map.WIDTH // where.pixels
    assert sum(block.count for block in where.blocks) == len(found)
    rows = {}
    for each in found:
        block, row, _ = where.spots[each.key]
        assert rows.setdefault((block, row), each.update_domain) == each.update_domain


def test_squares_grow_until_they_fill_their_room_and_few_have_names() -> None:
    pixels = [fleet_map.pixels_of(count) for count in (0, 12, 500, fleet_map.MAX_SQUARES, 9999)]
    assert pixels == [32, 32, 20, 10, 10]
    for count in (fleet_map.MAX_NAMED, fleet_map.MAX_NAMED + 1):
        found = [machine(f"m-{n}") for n in range(count)]
        where = fleet_map.layout(found, {("web", 0): count}, scopes("web"))
        names = [name for block in where.blocks for row in block.rows for name in row.names]
        assert len(names) == (count if count <= fleet_map.MAX_NAMED else 0)


def test_machines_without_a_set_share_a_block() -> None:
    found = [machine(f"m{n}", f"m{n}") for n in range(70)]
    sizes = Counter((each.scope, each.update_domain) for each in found)
    singles = scopes(*(each.name for each in found), kind=ScopeKind.MACHINE)
    (block,) = fleet_map.layout(found, sizes, singles).blocks
    assert [row.count for row in block.rows] == [20, 20, 20, 10]


@pytest.mark.parametrize(("domains", "each"), [(2000, 1), (2001, 2), (100_000, 50)])
def test_a_large_fleet_has_a_square_for_domains(domains: int, each: int) -> None:
    sizes = {(f"s{n}", 0): 3 for n in range(domains)}
    where = fleet_map.layout((), sizes, {})
    assert where.domains_each == each
    assert sum(block.count for block in where.blocks) <= fleet_map.MAX_SQUARES
    assert len(set(where.spots.values())) == -(-domains // each)


def test_a_square_shows_the_worst_of_its_machines() -> None:
    found = {f"m{n}": machine(f"m{n}", "web", n % 2) for n in range(2100)}
    sizes = Counter((each.scope, each.update_domain) for each in found.values())
    where = fleet_map.layout(found.values(), sizes, scopes("Web"))
    conditions = {Condition.NOTICE: {"m0": 1, "m1": 1}, Condition.DOWN: {"m2": 1}}
    drawn = fleet_map.drawn(where, conditions, found.get, str.title)
    ((_, marks),) = drawn.blocks
    assert [(mark.x, mark.condition) for mark in marks] == [
        (0, Condition.DOWN),
        (fleet_map.PITCH, Condition.NOTICE),
    ]
    assert all(not mark.machine for mark in marks)
    assert "Web" in marks[0].title


def approved(number: int, kind: ApproverKind, after: timedelta, **more: Any) -> Any:
    announced = NOW - timedelta(hours=1)
    word = model.Approval(kind=kind, by="m", at=announced + after)
    given = {"announced": announced, "approval": word, "start_cause": model.StartCause.APPROVED}
    return operation(number, EventStatus.COMPLETED, **given | more)


def test_the_median_is_of_approvals_that_people_or_guests_gave() -> None:
    operations = (
        *(approved(n, ApproverKind.GUEST, n * MINUTE) for n in (1, 2, 9)),
        approved(4, ApproverKind.AUTOMATIC, timedelta()),
        operation(5, EventStatus.COMPLETED, start_cause=model.StartCause.NOTICE_OVER),
        approved(6, ApproverKind.GUEST, MINUTE, started_at=NOW - timedelta(hours=25)),
        operation(7),
    )
    found = now.approvals(operations, NOW - now.DAY)
    assert found == now.ApprovalTimes(started=5, approved=3, median=2 * MINUTE)
    assert now.approvals((), NOW).median is None


@pytest.mark.parametrize("most", [now.MAX_PAST, 2])
def test_what_is_over_is_read_of_the_store(most: int) -> None:
    ends = {
        1: (EventStatus.COMPLETED, timedelta(minutes=1)),
        2: (EventStatus.CANCELED, timedelta(hours=23)),
        3: (EventStatus.COMPLETED, timedelta(hours=25)),
        4: (EventStatus.COMPLETED, timedelta(days=8)),
    }
    its = [operation(n, s, ended_at=NOW - ago) for n, (s, ago) in ends.items()]
    its += [operation(5), operation(6, EventStatus.FAILED)]  # both are live
    store = InMemoryStore()
    with store.write() as transaction:
        scope = model.Scope(name="web", kind=ScopeKind.AVAILABILITY_SET, update_domains=5)
        told = with_maintenances(*its)
        transaction.save(replace(told, scopes=(scope,)))
    with store.read() as reading:
        found = now.past(reading, NOW, most)
    assert [one.maintenance for one in found.operations] == [1, 2, 3][:most]
    assert Counter(found.day) == {EventStatus.COMPLETED: 1, EventStatus.CANCELED: 1}


def test_each_machine_of_a_maintenance_counts_once_by_its_latest_operation() -> None:
    ends = (EventStatus.FAILED, EventStatus.CANCELED, EventStatus.COMPLETED)
    its = [
        replace(operation(n, status, machines=machines), id=f"1.{n}")
        for n, status, machines in zip(
            (1, 2, 3), ends, (("web-0", "web-3"), ("web-1",), ("web-0", "web-3")), strict=True
        )
    ]
    counts = maintenance_page._counts({"1.2"}, its, 1)
    assert {name: count for name, count in counts.items() if count} == {"done": 2, "notice": 1}
    failed = maintenance_page._counts({"1.2"}, its[:1], 0)
    assert {name: count for name, count in failed.items() if count} == {"failed": 2}
