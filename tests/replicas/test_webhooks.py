"""Replicas share webhooks: one sends, and another goes on where it was killed."""

import http.server
from pathlib import Path
from typing import Final

import pytest

import postgres
from forewarn.maintenance import news
from forewarn.store import postgresql
from kills.cluster import Cluster
from kills.processes import Service
from replicas import stage
from server.receiver import receiving

SCALE: Final = 20.0
"""Of the clock: the turn of a replica that was killed is over after a second and a half."""

KILLS: Final = 3
PATIENCE: Final = 60.0

pytestmark = [pytest.mark.usefixtures("postgresql"), pytest.mark.timeout(300)]


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


def test_when_the_replica_that_sends_is_killed_the_other_one_goes_on(
    tmp_path: Path, database: postgres.Postgres
) -> None:
    url = database.create_database("webhooks")
    with receiving() as receiver, Cluster(tmp_path, url, 1, stage.TWO, scale=SCALE) as cluster:
        stage.prepare(cluster)
        body = {"name": "ours", "url": receiver.url()}
        cluster.ask("POST", "/v1/webhooks", body)

        def hang(_: http.server.BaseHTTPRequestHandler) -> None:
            receiver.over.wait(PATIENCE)

        for turn in range(KILLS):
            replicas = [*cluster.replicas.values()]
            lost, other = replicas[turn % 2], replicas[1 - turn % 2]
            before = len(receiver.got())
            receiver.answers["/hook"] = hang
            work(lost, stage.MACHINES[turn])  # who commits news sends it
            receiver.awaited(before + 1)
            lost.kill()
            lost.reap()
            receiver.answers.clear()
            number = int(work(other, stage.MACHINES[turn + KILLS]))

            def got(number: int = number) -> bool:
                return any(
                    one.json["type"] == news.NewsType.MAINTENANCE_FINISHED
                    and one.json["data"]["maintenance"] == number
                    for one in receiver.got()
                )

            stage.until(got, seconds=PATIENCE)
            lost.start(fresh=False)
            lost.wait_until_ready()
        received = [one.json["id"] for one in receiver.got()]
        for replica in cluster.replicas.values():
            replica.end()
    wanted = numbers_of_all_news(url, int(received[0].partition("-")[0]) - 1)
    assert list(dict.fromkeys(received)) == wanted
    assert len(received) <= len(wanted) + KILLS  # side by side they would send more
