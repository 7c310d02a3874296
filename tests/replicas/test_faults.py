"""What fails around replicas: the database's answers, the path to it, a process, a clock."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
import pytest

import forked
import postgres
from forewarn.store.postgresql import Access, Patience
from kills.cluster import Cluster
from kills.processes import environment, let_pass
from postgres import OWNER
from relays import network
from replicas import stage
from replicas.pair import Pair
from replicas.stage import MADE, OK, UNAVAILABLE
from tcp_proxy import TcpProxy

REFUSED: Final = 6
"""The exit status of a service whose store cannot be used: no supervisor starts it again."""

LOST_ANSWERS: Final = 4

pytestmark = [pytest.mark.usefixtures("postgresql"), pytest.mark.timeout(180)]


def pair_of(folder: Path, url: str, **more: Any) -> Cluster:
    """Return two replicas, whose program does as it is told."""
    return Cluster(folder, url, 1, stage.TWO, held=True, **more)


class Behind(NamedTuple):
    """Two replicas, not started yet, each with a way of its own to the database."""

    cluster: Cluster
    one: TcpProxy
    other: TcpProxy


@pytest.fixture
def behind(
    tmp_path: Path, database: postgres.Postgres, request: pytest.FixtureRequest
) -> Iterator[Behind]:
    url = database.create_database(request.node.name[-60:])
    with TcpProxy(database.port) as one, TcpProxy(database.port) as other:
        paths = {
            name: url.replace(f":{database.port}/", f":{proxy.port}/") + f"?application_name={name}"
            for name, proxy in zip(stage.TWO, (one, other), strict=True)
        }
        with pair_of(tmp_path, url, paths=paths) as cluster:
            yield Behind(cluster, one, other)


def lose_answer(proxy: TcpProxy, *, refuse: bool = False) -> None:
    """Lose the answer to the next commit of a change; refuse connections then, if so."""
    proxy.lose_answers(b"COMMIT", after=b"pg_notify", refuse=refuse)


def starts(cluster: Cluster, operation: str) -> list[dict[str, Any]]:
    """Return when the program began to carry out an operation."""
    runs = cluster.runs()
    return [run for run in runs if run["operation"] == operation and run["what"] == "start"]


def test_a_change_whose_answer_is_lost_is_answered_as_made_and_is_there_once(
    behind: Behind,
) -> None:
    cluster, proxy, _ = behind
    first, second = stage.prepare(cluster)
    for machine in stage.MACHINES[:LOST_ANSWERS]:
        lose_answer(proxy)
        operation = stage.request(first, machine)
        event = stage.announced(first, machine)
        lose_answer(proxy)
        assert first.approve(machine, event["EventId"]) == OK
        stage.complete(second, machine, operation)
        assert len(starts(cluster, operation)) == 1
    assert proxy.lost == 2 * LOST_ANSWERS
    assert len(second.ask("GET", "/v1/history")["operations"]) == LOST_ANSWERS


def test_a_change_whose_outcome_cannot_be_looked_up_is_told_as_not_known(behind: Behind) -> None:
    cluster, one, other = behind
    first, second = stage.prepare(cluster)
    operation = stage.request(first, "m0")
    event = stage.announced(first, "m0")["EventId"]
    lose_answer(other, refuse=True)
    body = {"machines": ["m1"], "event_type": "Reboot"}

    def approve() -> int:
        stage.until(lambda: other.lost)  # or that would be the claim's answer
        lose_answer(one, refuse=True)
        return first.approve("m0", event)

    status, (asked, told) = stage.together(
        approve, lambda: second.answer("POST", "/v1/maintenances", body)
    )
    assert (status, asked) == (UNAVAILABLE, UNAVAILABLE)
    assert '"unknown-outcome"' in told
    for proxy in (one, other):
        assert proxy.lost == 1
        proxy.heal()
    cluster.wait_until_ready()
    assert len(first.ask("GET", "/v1/maintenances")["maintenances"]) == 2
    assert first.approve("m0", event) == OK
    stage.complete(second, "m0", operation)
    assert len(starts(cluster, operation)) == 1


def goes_dark(
    cluster: Cluster,
    darken: Callable[[], None],
    clear: Callable[[], None],
    members: Callable[[], int] | None = None,
) -> int:
    """Let the path of the first replica go dark and come back, with the other beside it.

    `members` counts the replicas whose names the server holds. It has to notice that one is gone,
    or a restart of it elsewhere would be refused; and that one has to notice that it was forgotten.

    Returns:
        How often what it could not approve meanwhile was carried out in the end.
    """
    first, second = stage.prepare(cluster)
    operation = stage.request(second, "m0")
    event = stage.announced(first, "m0")["EventId"]
    body = {"machines": ["m1"], "event_type": "Reboot"}
    with stage.reading(first, "m2") as reads:
        darken()
        mine, others = stage.together(
            lambda: stage.timed(lambda: first.approve("m0", event)),
            lambda: stage.timed(lambda: second.answer("POST", "/v1/maintenances", body)),
        )
        assert mine[0] == UNAVAILABLE
        assert others[0][0] == MADE
        print(f"the dark held up its own for {mine[1]:.1f} s, others for {others[1]:.1f} s")
        stage.until(lambda: first.answer("GET", "/readyz")[0] == UNAVAILABLE)
        stage.until(lambda: stage.alerts(first, "store-down"))
        assert second.answer("GET", "/readyz")[0] == OK
        assert stage.alerts(second) == []
        assert stage.asked(first, "m1")["Events"] == []  # from memory
        if members is not None:
            stage.until(lambda: members() == 1)
        clear()
        cluster.wait_until_ready()
        if members is not None:
            stage.until(lambda: members() == 2)
    assert reads.refused == 0
    assert stage.complaints({"": reads}) == []
    print(reads)
    stage.until(lambda: stage.alerts(first) == [])
    stage.announced(first, "m1")
    assert first.approve("m0", event) == OK
    stage.complete(second, "m0", operation)
    return len(starts(cluster, operation))


def test_a_replica_whose_database_says_nothing_lets_guests_read_on(behind: Behind) -> None:
    assert goes_dark(behind.cluster, behind.one.stall, behind.one.heal) == 1


LISTENING: Final = "SELECT count(*) FROM pg_stat_activity WHERE query = 'LISTEN forewarn'"
"""The replicas' own connections, each of which holds a name: their last statement."""


FAR: Final = "127.0.0.9"
"""A second way to this machine, which the packet filter tells from the first."""

RULES: Final = (
    "table ip dark { chain arriving { type filter hook input priority 0; "
    f"ip saddr {FAR} drop; ip daddr {FAR} drop; }}; }}"
)


def darken() -> None:
    """Let packets by the second way vanish."""
    subprocess.run(["nft", "-f", "-"], input=RULES, text=True, check=True)


def clear() -> None:
    """Let packets pass again."""
    subprocess.run(["nft", "delete", "table", "ip", "dark"], check=True)


@pytest.fixture
def apart() -> Iterator[postgres.Postgres]:
    """A server in a network of its own, which two ways lead to."""
    if why := network.missing():
        pytest.skip(why)
    with network.own():
        server = postgres.Postgres(address="0.0.0.0")
        try:
            yield server.start()
        finally:
            server.remove()


def test_a_replica_whose_packets_vanish_lets_guests_read_on(
    tmp_path: Path, apart: postgres.Postgres
) -> None:
    apart.create_database("dark")
    url, path = (
        f"postgresql://{OWNER}@{address}:{apart.port}/dark" for address in ("127.0.0.1", FAR)
    )

    def members() -> int:
        return int(apart.sql(LISTENING, "dark"))

    with pair_of(tmp_path, url, paths={"r1": path}) as cluster:
        assert goes_dark(cluster, darken, clear, members) == 1


ACKNOWLEDGED_SECONDS: Final = 0.5
"""How long until both ends have acknowledged what they were sent: Linux delays it by 0.04 s."""

ASLEEP: Final = "SELECT pg_sleep(3600)"
"""Longer than anybody waits for this test."""


def test_both_ends_of_a_silent_connection_notice_that_its_path_is_dark(
    apart: postgres.Postgres,
) -> None:
    """Nothing is sent that could remain unacknowledged: it takes keepalives to notice."""
    access = Access(f"postgresql://{OWNER}@{FAR}:{apart.port}/{OWNER}", None, Patience())
    listening, asking = access.connect(), access.connect()
    listening.execute("LISTEN forewarn")
    asking.patience = None

    def give_up() -> None:
        with pytest.raises(psycopg.OperationalError):
            asking.execute(ASLEEP)

    def silent() -> bool:
        let_pass(ACKNOWLEDGED_SECONDS)
        darken()
        stage.until(lambda: apart.sql(LISTENING) == "0")
        return True

    asleep = f"SELECT count(*) FROM pg_stat_activity WHERE query = '{ASLEEP}'"
    (_, seconds), _ = stage.together(
        lambda: stage.timed(give_up),
        lambda: stage.until(lambda: apart.sql(asleep) == "1") and silent(),
    )
    print(f"given up after {seconds:.1f} s")
    listening.close()


HOLDS_THE_LOCK: Final = (
    "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE locktype = 'advisory' AND objid = 0 AND objsubid = 2 AND granted "
    "AND mode = 'ExclusiveLock' AND application_name = 'r1'"
)


def test_a_replica_that_is_frozen_in_a_transaction_loses_the_lock_and_does_no_harm(
    behind: Behind, database: postgres.Postgres
) -> None:
    cluster, proxy, _ = behind
    first, second = stage.prepare(cluster)
    machines = stage.MACHINES[:3]
    operations = [stage.request(second, machine) for machine in machines]
    events = [stage.announced(first, machine) for machine in machines]
    proxy.delay(0.1)  # so that a transaction takes its time

    def approve() -> int:
        return first.approve("m0", events[0]["EventId"])

    def freeze() -> int:
        stage.until(lambda: database.sql(HOLDS_THE_LOCK) == "1")
        os.kill(first.pid, signal.SIGSTOP)
        assert database.sql(HOLDS_THE_LOCK) == "1"
        try:
            return second.approve("m1", events[1]["EventId"])
        finally:
            proxy.heal()
            os.kill(first.pid, signal.SIGCONT)

    assert stage.together(approve, freeze) == [UNAVAILABLE, OK]
    cluster.wait_until_ready()
    assert stage.status(first, operations[0]) == "Scheduled"
    assert approve() == OK
    for replica, machine, operation in zip((second, first), machines, operations[:2], strict=False):
        stage.complete(replica, machine, operation)
        assert len(starts(cluster, operation)) == 1
    assert stage.announced(first, "m2") == stage.announced(second, "m2") == events[2]


def test_commits_that_no_standby_has_are_not_answered_as_made(tmp_path: Path) -> None:
    with (
        Pair(synchronous=True) as pair,
        pair_of(tmp_path, pair.url) as cluster,
    ):
        first, second = stage.prepare(cluster)
        operations = [stage.request(first, machine) for machine in ("m0", "m1")]
        events = [stage.announced(second, machine)["EventId"] for machine in ("m0", "m1")]
        with stage.reading(first, "m2") as mine, stage.reading(second, "m2") as others:
            pair.hold_back_standby()
            status, seconds = stage.timed(lambda: first.approve("m0", events[0]))
            assert status == UNAVAILABLE
            print(f"not known after {seconds:.1f} s")
            assert second.approve("m1", events[1]) == UNAVAILABLE
            pair.let_standby_follow()
            cluster.wait_until_ready()
        for reads in (mine, others):
            assert reads.refused == 0
            assert stage.complaints({"": reads}) == []
            print(reads)
        for machine, event, operation in zip(("m0", "m1"), events, operations, strict=True):
            assert second.approve(machine, event) == OK
            stage.complete(first, machine, operation)
            assert len(starts(cluster, operation)) == 1
        pair.lose_primary()
        cluster.wait_until_ready()
        assert [stage.status(second, operation) for operation in operations] == ["Completed"] * 2


AHEAD_SECONDS: Final = 1200
NOTICE_SECONDS: Final = 900
"""The notice of a reboot: less than clocks are wrong by."""


def test_replicas_whose_clocks_are_wrong_move_no_notice(
    tmp_path: Path, database: postgres.Postgres
) -> None:
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
    if library is None:
        pytest.skip("libfaketime is not installed")
    skewed = {"r2": AHEAD_SECONDS, "r3": -AHEAD_SECONDS}
    variables = {
        name: {
            "LD_PRELOAD": str(library),
            "FAKETIME": f"{seconds:+d}",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        for name, seconds in skewed.items()
    }
    url = database.create_database("skewed")
    with Cluster(tmp_path, url, 1, held=True, variables=variables) as cluster:
        first, *wrong = stage.prepare(cluster)
        stage.request(first, "m0")
        event = stage.announced(first, "m0")
        for replica in wrong:
            replica.kill()
            replica.reap()
            replica.start(fresh=False)
            replica.wait_until_ready()
        stage.request(wrong[0], "m1")
        for replica in (first, *wrong):
            assert stage.announced(replica, "m0") == event
            assert stage.announced(replica, "m1") == stage.announced(first, "m1")
        notices = [
            stage.operation(first, o["operation"]) for o in first.ask("GET", "/v1/events")["events"]
        ]
        left = [found["notice_left_seconds"] for found in notices if found]
        assert all(0 < seconds <= NOTICE_SECONDS + 1 for seconds in left), left

        def rows() -> dict[str, Any] | None:
            command = ["-m", "forewarn", "replicas", "--json", "--operator", str(first.socket)]
            told = forked.run(command, env=environment())
            assert told.returncode == 0, told.stderr
            found = {row["name"]: row for row in json.loads(told.stdout)["replicas"]}
            return found if all(found[name]["clock_ahead_ms"] for name in skewed) else None

        found = stage.until(rows)
        for name, ahead in {"r1": 0, **skewed}.items():
            assert abs(found[name]["clock_ahead_ms"] / 1000 - ahead) < AHEAD_SECONDS / 10
        cluster.wait_until_ready()


FAST: Final = 10.0
"""How much faster the clock runs where a lease of a minute is waited for."""


def carrying_out(cluster: Cluster) -> dict[str, Any]:
    """Start the first replica, let it carry out an operation, and start the second.

    Returns: The run, which is held up.
    """
    first, second = cluster.replicas.values()
    first.start(fresh=False)
    first.wait_until_ready()
    first.ask("PUT", "/v1/fleet", {"machine": [{"name": "m0"}]})
    stage.until(lambda: stage.asked(first, "m0"))
    cluster.hold.touch()
    operation = stage.request(first, "m0")
    assert first.approve("m0", stage.announced(first, "m0")["EventId"]) == OK
    (run,) = stage.until(lambda: starts(cluster, operation))
    second.start(fresh=False)
    second.wait_until_ready()
    return run


def test_a_task_whose_replica_stays_dead_is_done_once_or_asked_about(
    tmp_path: Path, database: postgres.Postgres
) -> None:
    def lose(name: str, *, checked: bool) -> Cluster:
        """Lose a replica with what it carries out; return what is left."""
        url = database.create_database(name)
        cluster = pair_of(tmp_path / name, url, checked=checked, scale=FAST)
        running.enter_context(cluster)
        run = carrying_out(cluster)
        first = cluster.replicas["r1"]
        for pid in (first.pid, run["runner"], run["pid"]):
            os.kill(pid, signal.SIGKILL)
        assert first.reap() == -signal.SIGKILL
        cluster.hold.unlink()
        return cluster

    with contextlib.ExitStack() as running:
        # The checked one last: its machine has to ask soon after its task was done.
        unchecked, checked = (lose("unchecked", checked=False), lose("checked", checked=True))
        (_, left), (_, asking) = checked.replicas.values(), unchecked.replicas.values()
        stage.complete(left, "m0", "1.1")
        runs = checked.runs()
        assert [run["what"] for run in runs] == ["start", "start", "end"]
        doubts = stage.until(lambda: stage.alerts(asking, "unknown"))
        assert [alert["about"] for alert in doubts] == ["1.1"]
        assert [run["what"] for run in unchecked.runs()] == ["start"]
        assert stage.status(asking, "1.1") == "Started"


def test_a_replica_that_comes_back_knows_what_nobody_else_could_tell(
    tmp_path: Path, database: postgres.Postgres
) -> None:
    url = database.create_database("comes_back")
    with pair_of(tmp_path, url, checked=False, scale=FAST) as cluster:
        first, second = cluster.replicas.values()
        run = carrying_out(cluster)
        operation = run["operation"]
        first.kill()
        assert first.reap() == -signal.SIGKILL
        stage.until(lambda: stage.alerts(second, "unknown"))
        cluster.hold.unlink()  # the program ends well; its result is in the folder of the first
        first.start(fresh=False)
        first.wait_until_ready()
        stage.complete(second, "m0", operation)
        assert len(starts(cluster, operation)) == 1


def test_a_second_process_of_a_name_is_refused_by_one_line(
    tmp_path: Path, database: postgres.Postgres
) -> None:
    url = database.create_database("names")
    with (
        Cluster(tmp_path / "one", url, 1, ("r1",)) as cluster,
        Cluster(tmp_path / "other", url, 1, ("r1",)) as double,
    ):
        cluster.start()
        (first,), (second,) = cluster.replicas.values(), double.replicas.values()
        second.start(fresh=True)
        stage.until(lambda: not second.runs)
        assert second.reap() == REFUSED
        lines = [json.loads(line) for line in second.log.read_text().splitlines()]
        (error,) = [line for line in lines if line["level"] == "error"]
        assert "'r1'" in error["event"]
        assert "exception" not in error
        assert first.ask("GET", "/readyz")["ready"]
