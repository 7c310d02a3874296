"""Stories of replicas as processes, on a PostgreSQL that may fail: see faults.txt for the verbs."""

import contextlib
import itertools
import json
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from forewarn.cli.exits import Failed
from forewarn.cli.follow import EventParser
from forewarn.cli.operator_client import OperatorClient
from kills.cluster import AWAY, Cluster
from kills.processes import Service
from patience import eventually, until
from postgres import OWNER, Postgres
from replicas import network
from replicas.pair import Pair
from stories import Told, listed
from tcp_proxy import TcpProxy
from trace_judge import Trace

MACHINES: Final = tuple(f"m{number}" for number in range(8))

LISTENING: Final = "SELECT count(*) FROM pg_stat_activity WHERE query = 'LISTEN forewarn'"
"""The replicas' own connections, each of which holds a name: their last statement."""

HOLDS_THE_LOCK: Final = (
    "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE locktype = 'advisory' AND objid = 0 AND objsubid = 2 AND granted "
    "AND mode = 'ExclusiveLock' AND application_name = 'r1'"
)


def document(replica: Service, machine: str) -> Any:
    """Return a machine's document; None where the replica does not give it."""
    try:
        return replica.document(machine)
    except AWAY:
        return None


class Reader:
    """A guest that reads at one replica again and again."""

    def __init__(self, replica: Service, machine: str) -> None:
        self.replica = replica
        self.machine = machine
        self.refused = 0
        self.documents: list[dict[str, Any]] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.wait(0.05):
            if (read := document(self.replica, self.machine)) is None:
                self.refused += 1
            else:
                self.documents.append(read)

    def end(self) -> None:
        self._ending.set()
        self._thread.join()


class Follower:
    """Follows the news at replicas in turns: each time the stream ends, at the next one."""

    def __init__(self, *replicas: Service) -> None:
        self.items: list[dict[str, Any]] = []
        self._last_id = "0"
        self._replicas = itertools.cycle(replicas)
        self._ending = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def end(self) -> None:
        self._ending.set()

    def _run(self) -> None:
        while not self._ending.is_set():
            parser = EventParser(self._last_id)
            client = OperatorClient(address=str(next(self._replicas).socket))
            try:
                for piece in client.stream("/v1/stream", 30, self._last_id):
                    for event in parser.feed(piece):
                        self.items.append({"id": event.id, **json.loads(event.data)})
                    self._last_id = parser.last_id
                    if self._ending.is_set():
                        return
            except Failed:
                self._ending.wait(0.05)


class Stage(Told):
    """Replicas so far.

    Args:
        folder: Empty; holds everything.
        server: The database of replicas that have no pair.
    """

    def __init__(self, folder: Path, server: Postgres) -> None:
        self.folder = folder
        self.server = server
        self.pair_: Pair | None = None
        self.proxies: dict[str, TcpProxy] = {}
        self.readers: list[Reader] = []
        self.followers: dict[str, Follower] = {}
        self.operations: dict[str, str] = {}
        """The latest operation of each machine."""
        self.names: set[str] = set()
        """All operations that there were."""
        self._ran: dict[str, int] = {}
        """How much the program had noted of each machine when that was scheduled."""
        self._told: dict[str, Any] = {}
        """What each replica's operators have been told of lost changes."""
        self._noted: dict[str, Any] = {}
        self._begun: list[Future[None]] = []
        self.threads = ThreadPoolExecutor()
        self.left = contextlib.ExitStack()
        """What ends with the story."""
        self.left.callback(self.threads.shutdown)

    # What there is.

    def pair(self, how: str) -> None:
        """A primary and a standby, which a commit waits for if they are `synchronous`."""
        self.pair_ = self.left.enter_context(Pair(synchronous=how == "synchronous"))

    def packets(self) -> None:
        """A database in a network of its own, which r1 reaches by a way that may go dark."""
        if why := network.missing():
            pytest.skip(why)
        self.left.enter_context(network.own())
        self.server = Postgres(address="0.0.0.0")
        self.left.callback(self.server.remove)
        self.server.start()

    def run(self, *names: str, not_yet: str = "", **how: Any) -> None:
        """Start replicas, with eight machines, whose guests have all asked."""
        self.make(*names, **how)
        started = [name for name in names if name != not_yet]
        for name in started:
            self.start(name)
        self.cluster.ask("PUT", "/v1/fleet", {"machine": [{"name": name} for name in MACHINES]})
        for machine in MACHINES:  # a scope gets no notice before its machines have asked
            for name in started:
                until(lambda: document(self[name], machine))  # noqa: B023 - called at once

    def make(
        self, *names: str, by: str = "", scale: str = "1", checked: str = "yes", **more: Any
    ) -> None:
        """Have replicas, none of them started, that reach the database by `ways` or `packets`."""
        url = self.pair_.url if self.pair_ else self.server.create_database(self.folder.name)
        paths = {}
        if by == "ways":
            for name in names:
                proxy = self.left.enter_context(TcpProxy(self.server.port))
                self.proxies[name] = proxy
                way = url.replace(f":{self.server.port}/", f":{proxy.port}/")
                paths[name] = f"{way}?application_name={name}"
        elif by == "packets":
            place = f"{network.FAR}:{self.server.port}"
            paths["r1"] = f"postgresql://{OWNER}@{place}/{self.folder.name}"
        self.cluster = Cluster(
            self.folder,
            url,
            1,
            names,
            paths=paths,
            held=True,
            checked=checked == "yes",
            scale=float(scale),
            **more,
        )
        self.left.enter_context(self.cluster)

    def __getitem__(self, name: str) -> Service:
        return self.cluster.replicas[name]

    # Operators and guests.

    def schedule(self, *machines: str, at: str, status: str = "201", says: str = "") -> None:
        """Ask for a reboot of each machine."""
        for machine in machines:
            self._ran[machine] = len(self._runs(machine))
            body = {"machines": [machine], "event_type": "Reboot"}
            found, told = self[at].answer("POST", "/v1/maintenances", body)
            assert str(found) == status, (found, told)
            assert says in told
            if found == 201:
                name = json.loads(told)["operations"][0]["id"]
                assert name not in self.names, "no name is given again"
                self.names.add(name)
                self.operations[machine] = name

    def announced(self, machine: str, at: str) -> dict[str, Any]:
        """Return the event that a machine reads, once it does."""
        replica = self[at]

        def first() -> Any:
            return next(iter((document(replica, machine) or {"Events": []})["Events"]), None)

        return dict(until(first))

    def approve(self, *machines: str, at: str, status: str = "200") -> None:
        for machine in machines:
            event = self.announced(machine, at)["EventId"]
            assert str(self[at].approve(machine, event)) == status

    def operation(self, machine: str, at: str) -> dict[str, Any] | None:
        """Return the latest operation of a machine, live or over; None where there is none."""
        over = self[at].ask("GET", "/v1/history?limit=1000")["operations"]
        return next((each for each in over if each["id"] == self.operations[machine]), None)

    def status(self, machine: str, status: str, at: str) -> None:
        """Compare the status of a machine's latest operation, which is `gone` where it is lost."""
        assert (self.operation(machine, at) or {"status": "gone"})["status"] == status

    def complete(self, *machines: str, at: str) -> None:
        """Wait until maintenance of each machine is over, with the machine back."""
        for machine in machines:

            def over() -> Any:
                document(self[at], machine)  # noqa: B023 - called at once; so it is back
                found = self.operation(machine, at)  # noqa: B023
                return found and found["status"] in {"Completed", "Failed"} and found

            found = until(over)
            assert found["status"] == "Completed", found

    def maintain(self, *machines: str, at: str, approved_at: str) -> None:
        """Have machines maintained from the request to the end, one after another."""
        for machine in machines:
            self.schedule(machine, at=at)
            self.approve(machine, at=approved_at)
            self.complete(machine, at=at)

    def resolve(self, machine: str, at: str) -> None:
        body = {"references": [self.operations[machine]], "verdict": "succeeded"}
        self[at].ask("POST", "/v1/resolutions", body)

    def alerts(self, at: str, kind: str = "") -> list[Any]:
        """Return what a replica's operators are told, all or of one kind."""
        found = self[at].ask("GET", "/v1/alerts")["items"]
        return [alert for alert in found if kind in {"", alert["kind"]}]

    def alert(self, kind: str, machine: str = "", *, at: str) -> None:
        """Wait until operators are told of a trouble, of a machine's operation if it is given."""

        def about() -> bool:
            found = {alert["about"] for alert in self.alerts(at, kind)}
            return found == {self.operations[machine]} if machine else bool(found)

        until(about)

    def no_alerts(self, at: str) -> None:
        until(lambda: self.alerts(at) == [])

    def lost_changes(self, *names: str) -> None:
        """Wait until each replica tells of another loss than the last one."""
        for name in names:
            told = until(
                lambda: (
                    (found := self.alerts(name, "lost-changes"))  # noqa: B023
                    and found != self._told.get(name)  # noqa: B023
                    and found
                )
            )
            self._told[name] = told

    def answers(self, name: str, path: str, status: str) -> None:
        """Wait until operators are answered so."""
        eventually(lambda: str(self[name].answer("GET", path)[0]), status)

    def ready(self) -> None:
        self.cluster.wait_until_ready()

    def count(self, what: str, number: str, at: str) -> None:
        """Count the maintenances, or the operations of the history."""
        path = "history" if what == "operations" else what
        assert len(self[at].ask("GET", f"/v1/{path}?limit=1000")[what]) == int(number)

    # What guests read.

    def reading(self, *machines: str, at: str) -> None:
        """Have guests of machines read at replicas all the time, until `sound`."""
        made = [Reader(self[name], each) for name in listed(at) for each in machines]
        for reader in made:
            self.left.callback(reader.end)
        self.readers += made

    def sound(self, refusals: str = "none") -> None:
        """No guest was refused; no number went back, or had two contents, whoever was asked."""
        traces = {reader.machine: Trace() for reader in self.readers}
        for number, reader in enumerate(self.readers):
            reader.end()
            assert reader.documents
            assert refusals == "some" or not reader.refused
            for read in reader.documents:
                number_of = read["DocumentIncarnation"]
                traces[reader.machine].read(str(number), "", number_of, read["Events"])
        assert [each for trace in traces.values() for each in trace.complaints] == []
        self.readers = []

    def nothing(self, machine: str, at: str) -> None:
        """A machine reads of no event."""
        for name in listed(at):
            assert self[name].document(machine)["Events"] == []

    def note(self, *machines: str, at: str) -> None:
        """Remember what machines read, once they read of an event."""
        for machine in machines:
            self.announced(machine, at)
            self._noted[machine] = self[at].document(machine)

    def as_noted(self, *machines: str, at: str, higher: str = "") -> None:
        """Each replica shows the events that were noted; by a higher number, if that is said."""
        for machine, name in itertools.product(machines, listed(at)):
            noted = self._noted[machine]
            self.announced(machine, name)
            found = self[name].document(machine)
            assert found["Events"] == noted["Events"]
            if higher:
                assert found["DocumentIncarnation"] > noted["DocumentIncarnation"] + 1

    # The news.

    def follow(self, reader: str, at: str) -> None:
        self.followers[reader] = follower = Follower(*(self[name] for name in listed(at)))
        self.left.callback(follower.end)

    def finished(self, reader: str, number: str) -> None:
        """Wait until a reader has been told of so many ends of maintenance."""
        items = self.followers[reader].items
        finished = "maintenance.finished"
        until(lambda: [item["type"] for item in items].count(finished) >= int(number))

    def same_news(self, reader: str, other: str) -> None:
        """What one was told, another was told too, in its order, and nothing twice."""
        told = [*self.followers[reader].items]
        until(lambda: len(self.followers[other].items) >= len(told))
        assert self.followers[other].items[: len(told)] == told
        assert len({item["id"] for item in told}) == len(told)
        assert "gap" not in {item["type"] for item in told}

    # What the program did.

    def hold(self) -> None:
        """Let what the program begins from now on last."""
        self.cluster.hold.touch()

    def let_go(self) -> None:
        self.cluster.hold.unlink()

    def _runs(self, machine: str) -> list[dict[str, Any]]:
        return [run for run in self.cluster.runs() if run["machine"] == machine]

    def did(self, machine: str, *what: str) -> None:
        """Wait until this is what the program did to a machine since it was scheduled last."""
        since = self._ran[machine]
        eventually(lambda: [run["what"] for run in self._runs(machine)[since:]], [*what])

    # Faults.

    def start(self, name: str) -> None:
        self[name].start()
        self[name].wait_until_ready()

    def kill(self, name: str, with_program_of: str = "") -> None:
        pids = [self[name].pid]
        if with_program_of:
            run = self._runs(with_program_of)[-1]
            pids += [run["runner"], run["pid"]]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert self[name].ended() == -signal.SIGKILL

    def begin(self, verb: str, *words: str, **options: str) -> None:
        """Begin what a line says; the story goes on meanwhile."""
        act: Callable[..., None] = getattr(self, verb)
        self._begun.append(self.threads.submit(act, *words, **options))

    def ended(self) -> None:
        """All that was begun holds."""
        while self._begun:
            self._begun.pop().result()

    def lose_answer(self, name: str, *how: str) -> None:
        """Lose the answer to a replica's next commit; refuse connections then, if `refusing`."""
        refuse = how == ("refusing",)
        self.proxies[name].lose_answers(b"COMMIT", after=b"pg_notify", refuse=refuse)

    def lost(self, name: str, times: str) -> None:
        """Wait until so many answers to a replica were lost."""
        eventually(lambda: self.proxies[name].lost, int(times))

    def dark(self, name: str) -> None:
        """Let the way between a replica and the database go dark."""
        (self.proxies[name].stall if self.proxies else network.darken)()

    def clear(self, name: str) -> None:
        (self.proxies[name].heal if self.proxies else network.clear)()

    def members(self, number: str) -> None:
        """Wait until the server holds the names of so many replicas.

        It has to notice that one is gone, or a restart of it elsewhere would be refused; and that
        one has to notice that it was forgotten.
        """
        eventually(lambda: self.server.sql(LISTENING, self.folder.name), number)

    def slow(self, name: str) -> None:
        """Let each packet of a replica take a tenth of a second, and a transaction its time."""
        self.proxies[name].delay(0.1)

    def freeze_in_transaction(self, name: str) -> None:
        """Freeze a replica that holds the lock of the one who writes."""
        assert name in HOLDS_THE_LOCK
        eventually(lambda: self.server.sql(HOLDS_THE_LOCK), "1")
        os.kill(self[name].pid, signal.SIGSTOP)
        self.left.callback(self.thaw, name)
        assert self.server.sql(HOLDS_THE_LOCK) == "1"

    def thaw(self, name: str) -> None:
        if self[name].pid:
            os.kill(self[name].pid, signal.SIGCONT)

    def standby(self, does: str) -> None:
        """The standby is held back, follows again, has all, takes over, or there is a new one."""
        assert self.pair_ is not None
        {
            "is-held-back": self.pair_.hold_back_standby,
            "follows": self.pair_.let_standby_follow,
            "has-all": self.pair_.wait_until_standby_has_all,
            "takes-over": self.pair_.lose_primary,
            "is-added": self.pair_.add_standby,
        }[does]()
