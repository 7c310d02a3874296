"""What machines tell the replicas of one store: sightings.txt, and how often it is written."""

import pytest

from builders import NOW, SECOND
from forewarn.control.replicas import BEATS, SharedSightings
from forewarn.maintenance.model import Changes, Sighting
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import AgentStatus
from store.story import WITH_MACHINES, replica, save
from stories import Told, stories_beside


def seen(seconds: float, agent: AgentStatus | None = None) -> Sighting:
    return Sighting(asked_at=NOW + seconds * SECOND, version="2020-07-01", agent=agent)


class Seeing:
    """A replica over a store: it sees machines, and beats."""

    def __init__(self, name: str, store: InMemoryStore) -> None:
        self.seen: dict[str, Sighting] = {}
        self.sightings = SharedSightings(self.seen.get)
        self.store = store
        self._row = replica(name)

    def sees(self, machine: str, seconds: float, agent: AgentStatus | None = None) -> None:
        known = self.seen.get(machine)
        word = agent is not None and (known is None or known.agent is not agent)
        agent = agent or (known.agent if known else None)
        self.seen[machine] = seen(seconds, agent)
        if known is None or word:
            self.sightings.hear(machine)

    def beat(self) -> int:
        """Write the news, read what others wrote; return how many rows were news."""
        news = self.sightings.news()
        self.store.beat(self._row, news)
        with self.store.read() as reading:
            self.sightings.learn_others(reading.sightings())
        return len(news)


def pair() -> tuple[Seeing, Seeing]:
    store = InMemoryStore()
    save(store, WITH_MACHINES)
    return Seeing("r1", store), Seeing("r2", store)


class SightingStory(Told):
    """Two replicas, by their names."""

    def __init__(self) -> None:
        self.replicas = dict(zip(("r1", "r2"), pair(), strict=True))

    def sees(self, name: str, machine: str, at: str, *agent: str) -> None:
        self.replicas[name].sees(machine, int(at), *map(AgentStatus, agent))

    def relays(self, name: str, machine: str, at: str, *agent: str) -> None:
        """The relay of its host tells of a machine."""
        told = seen(int(at), *map(AgentStatus, agent))
        self.replicas[name].sightings.relay(machine, told)

    def beat(self, name: str, rows: str = "") -> None:
        count = self.replicas[name].beat()
        assert rows in {"", str(count)}

    def fail(self, name: str) -> None:
        """Beat, and nothing is written."""
        sightings = self.replicas[name].sightings
        sightings.keep(sightings.news())

    def removed(self, name: str, machine: str) -> None:
        self.replicas[name].sightings.learn(Changes(removed_machines=(machine,)))

    def forget(self, name: str, machine: str) -> None:
        del self.replicas[name].seen[machine]

    def knows(self, name: str, machine: str, at: str, *agent: str) -> None:
        told = seen(int(at), *map(AgentStatus, agent))
        assert self.replicas[name].sightings(machine) == told

    def knows_nothing(self, name: str, machine: str) -> None:
        assert self.replicas[name].sightings(machine) is None


@pytest.mark.parametrize("rows", stories_beside(__file__, "sightings.txt"))
def test_the_story_of_sightings_holds(rows: list[tuple[int, str]]) -> None:
    assert SightingStory().play("sightings.txt", rows)


def test_a_machine_that_asks_all_the_time_is_written_again_and_again_but_not_at_each_beat() -> None:
    one, _ = pair()
    rows = 0
    for beat in range(BEATS * 2):
        for machine in ("web-0", "web-1", "web-2"):
            one.sees(machine, beat)
        rows += one.beat()
    assert 6 <= rows <= 3 * BEATS


def test_a_machine_that_is_removed_while_rows_are_read_stays_forgotten() -> None:
    one, _ = pair()
    one.sees("web-0", 1)
    one.beat()
    del one.seen["web-0"]
    one.sightings.news()
    with one.store.read() as reading:
        found = reading.sightings()
    one.sightings.learn(Changes(removed_machines=("web-0",)))
    one.sightings.learn_others(found)
    assert one.sightings("web-0") is None
    one.sightings.news()  # it may come back later, and ask another replica
    one.sightings.learn_others(found)
    assert one.sightings("web-0") is not None


def test_a_machine_that_is_awaited_is_written_as_soon_as_it_asks_again() -> None:
    one, _ = pair()
    for number in range(200):
        one.sees(f"m{number}", 0)
    one.beat()
    one.sightings.await_again(["m150"])
    assert one.beat() == 0
    for number in range(200):
        one.sees(f"m{number}", 1)
    news = [*one.sightings.news()]
    assert "m150" in news
    assert len(news) <= 1 + 200 // BEATS + 1  # of the others, those whose turn it is
