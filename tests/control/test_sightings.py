"""What machines tell one replica counts at the others."""

from datetime import timedelta

from forewarn.control.replicas import BEATS, SharedSightings
from forewarn.maintenance.model import Changes, Sighting
from forewarn.store.port import Replica
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import AgentStatus
from store.conformance import save
from store.conformance_outbox import WITH_MACHINES
from store.values import NOW

SECOND = timedelta(seconds=1)


class Seeing:
    """A replica over a store: it sees machines, and beats."""

    def __init__(self, name: str, store: InMemoryStore) -> None:
        self.seen: dict[str, Sighting] = {}
        self.sightings = SharedSightings(self.seen.get)
        self.store = store
        self._row = Replica(name=name, process="", version="", started_at=NOW, beat_at=NOW)

    def sees(self, machine: str, seconds: float, agent: AgentStatus | None = None) -> None:
        at = NOW + seconds * SECOND
        known = self.seen.get(machine)
        word = agent is not None and (known is None or known.agent is not agent)
        agent = agent or (known.agent if known else None)
        self.seen[machine] = Sighting(asked_at=at, version="2020-07-01", agent=agent)
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


def test_a_machine_that_asks_one_replica_is_known_to_listen_at_the_other() -> None:
    one, two = pair()
    one.sees("web-0", 1)
    assert two.sightings("web-0") is None
    one.beat()
    two.beat()
    assert two.sightings("web-0") == one.sightings("web-0") == one.seen["web-0"]


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


def test_what_an_agent_says_anew_is_written_at_the_next_beat() -> None:
    one, two = pair()
    one.sees("web-0", 1)
    one.beat()
    one.sees("web-0", 2, AgentStatus.HELD)
    assert one.beat() == 1
    two.beat()
    seen = two.sightings("web-0")
    assert seen is not None
    assert seen.agent is AgentStatus.HELD


def test_the_later_request_counts_wherever_it_was_made() -> None:
    one, two = pair()
    one.sees("web-0", 1, AgentStatus.PREPARING)
    one.beat()
    two.sees("web-0", 5)
    two.beat()
    seen = two.sightings("web-0")
    assert seen == Sighting(
        asked_at=NOW + 5 * SECOND, version="2020-07-01", agent=AgentStatus.PREPARING
    )
    one.beat()
    assert one.sightings("web-0") == seen


def test_what_could_not_be_written_is_news_again() -> None:
    one, _ = pair()
    one.sees("web-0", 1)
    one.sightings.keep(one.sightings.news())
    assert one.beat() == 1
    assert one.beat() == 0


def test_a_machine_that_left_the_fleet_is_forgotten() -> None:
    one, two = pair()
    one.sees("web-0", 1)
    one.beat()
    two.beat()
    two.sightings.learn(Changes(removed_machines=("web-0",)))
    assert two.sightings("web-0") is None


def test_what_a_machine_told_the_relay_of_its_host_counts_here_and_at_the_other_replica() -> None:
    one, two = pair()
    one.sightings.relay("web-0", seen(1, AgentStatus.PREPARING))
    assert one.sightings("web-0") == seen(1, AgentStatus.PREPARING)
    assert one.beat() == 1
    two.beat()
    assert two.sightings("web-0") == seen(1, AgentStatus.PREPARING)
    one.sightings.relay("web-0", seen(2))  # it asks again, and its agent says nothing new
    assert one.beat() <= 1
    one.sightings.relay("web-0", seen(3, AgentStatus.READY))
    one.beat()
    two.beat()
    assert two.sightings("web-0") == seen(3, AgentStatus.READY)


def test_a_machine_that_moves_from_the_service_to_a_relay_keeps_what_it_said_last() -> None:
    one, _ = pair()
    one.sees("web-0", 5, AgentStatus.HELD)
    one.sightings.relay("web-0", seen(3, AgentStatus.PREPARING))
    assert one.sightings("web-0") == seen(5, AgentStatus.HELD)
    one.sightings.relay("web-0", seen(6))
    found = one.sightings("web-0")
    assert found is not None
    assert found.asked_at == NOW + 6 * SECOND
    one.sightings.learn(Changes(removed_machines=("web-0",)))
    one.seen.clear()
    assert one.sightings("web-0") is None


def seen(seconds: float, agent: AgentStatus | None = None) -> Sighting:
    return Sighting(asked_at=NOW + seconds * SECOND, version="2020-07-01", agent=agent)
