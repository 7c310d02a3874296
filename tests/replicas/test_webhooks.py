"""Replicas share webhooks: one delivers, and another goes on where it was killed."""

from pathlib import Path
from typing import Any, Final

import pytest

import postgres
from forewarn.maintenance import news
from forewarn.store import postgresql
from kills.processes import Service
from replicas import stage
from replicas.cluster import Cluster
from server.receiver import receiving

TWO: Final = ("r1", "r2")
SCALE: Final = 20.0
"""Of the clock: a lease of a minute is over after three seconds."""

KILLS: Final = 3
PATIENCE: Final = 60.0

pytestmark = [pytest.mark.usefixtures("postgresql"), pytest.mark.timeout(300)]


def webhook(replica: Service) -> dict[str, Any]:
    (found,) = replica.ask("GET", "/v1/webhooks")["webhooks"]
    assert isinstance(found, dict)
    return found


def work(replica: Service, machine: str) -> str:
    """Leave some news behind; return the number of the maintenance that it ends with."""
    number = stage.request(replica, machine).partition(".")[0]
    replica.ask("POST", "/v1/cancellations", {"references": [number]})
    return number


def numbers_of_all_news(url: str, after: int) -> list[str]:
    store = postgresql.open_store(url)
    try:
        with store.read() as reading:
            found = reading.news_after(after, 10_000)
    finally:
        store.close()
    return [told.id for record in found for told in news.numbered(record.sequence, record.items)]


def test_when_the_replica_that_delivers_is_killed_the_other_one_goes_on(
    tmp_path: Path, database: postgres.Postgres
) -> None:
    url = database.create_database("webhooks")
    with receiving() as receiver, Cluster(tmp_path, url, 1, TWO, scale=SCALE) as cluster:
        stage.prepare(cluster)
        body = {"name": "ours", "url": receiver.url()}
        cluster.ask("POST", "/v1/webhooks", body)
        holders = []
        for turn in range(KILLS):
            before = len(receiver.got())
            first = cluster.replicas[TWO[turn % 2]]
            work(first, stage.MACHINES[turn])
            receiver.awaited(before + 1)
            holder = webhook(first)["holder"]
            holders.append(holder)
            lost = cluster.replicas[holder]
            lost.kill()
            lost.reap()
            (other,) = (each for name, each in cluster.replicas.items() if name != holder)
            number = work(other, stage.MACHINES[turn + KILLS])

            def told(number: str = number) -> bool:
                return any(
                    one.json["type"] == news.NewsType.MAINTENANCE_FINISHED
                    and one.json["data"]["maintenance"] == int(number)
                    for one in receiver.got()
                )

            stage.until(told, seconds=PATIENCE)
            lost.start(fresh=False)
            lost.wait_until_ready()
        received = [one.json["id"] for one in receiver.got()]
        first_told = int(received[0].partition("-")[0])
        for replica in cluster.replicas.values():
            replica.end()
    assert set(holders) <= set(TWO)
    assert list(dict.fromkeys(received)) == numbers_of_all_news(url, first_told - 1)
