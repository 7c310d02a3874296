"""Stories of one store: store.txt, and the values and commits of other tests of stores."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import Any

import msgspec

from forewarn.maintenance.accounts import DONE, AuditRecord, Deed, Token
from forewarn.maintenance.model import Changes, Refused, Sighting
from forewarn.maintenance.relays import Relay
from forewarn.maintenance.units import MaintenanceState, UnitState
from forewarn.maintenance.webhooks import Webhook
from forewarn.store.port import AuditQuery, ChangeRecord, HistoryQuery, Position, Replica
from forewarn.store.queries import Reading
from forewarn.store.sql import Store, Transaction
from forewarn.vocabulary import AccessRole, ErrorCode, EventStatus
from store import values
from store.values import MINUTE, NOW, WEB, event, machine, operation, with_maintenances
from stories import Told, listed

WITH_MACHINES = Changes(scopes=(WEB,), machines=(machine("web-0"), machine("web-1")))


def save(store: Store, changes: Changes) -> None:
    with store.write() as transaction:
        transaction.save(changes)


def new_change(token: str, at: datetime = NOW) -> ChangeRecord:
    body = f'["body of {token}", "\\u0000"]'.encode()
    return ChangeRecord(token=token, replica="r1", at=at, format=1, body=body)


def append(transaction: Transaction, token: str, at: datetime = NOW) -> Position:
    return transaction.append(new_change(token, at))


def append_alone(store: Store, token: str, at: datetime = NOW) -> Position:
    with store.write() as transaction:
        return append(transaction, token, at)


def replica(name: str = "r1", **fields: object) -> Replica:
    known = {"process": "p1", "version": "1.0", "started_at": NOW, "beat_at": NOW}
    return msgspec.convert(known | fields | {"name": name}, Replica)


def seen(machine_key: str, **fields: object) -> dict[str, Sighting]:
    known = {"asked_at": NOW, "version": "2020-07-01"}
    return {machine_key: msgspec.convert(known | fields, Sighting)}


def relay(host: str = "h1", heard_at: datetime = NOW, **fields: object) -> Relay:
    known: dict[str, object] = {
        "replica": "a",
        "version": "1",
        "started_at": NOW,
        "due_at": heard_at + MINUTE,
        "etag": "e.7.d",
        "machines": 3,
    }
    return msgspec.convert(known | fields | {"host": host, "heard_at": heard_at}, Relay)


def webhook(name: str, url: str = "https://a.example/") -> Webhook:
    return Webhook(name=name, url=url, secret="whsec_", cursor=(0, 0))


class StoreStory(Told):
    """What is written to a store, a transaction for each line or for several, and what is read."""

    beginning = NOW

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now = NOW
        self.stack = ExitStack()
        self.begun: Transaction | None = None
        self.appended: dict[str, tuple[ChangeRecord, bytes]] = {}

    def carry_out(self, row: str) -> None:
        super().carry_out(row.replace(r"\0", "\0"))

    def begin(self) -> None:
        self.begun = self.stack.enter_context(self.store.write())

    def commit(self) -> None:
        self.begun = None
        self.stack.close()

    def roll_back(self) -> None:
        self.begun = None
        refusal = Refused(ErrorCode.CONFLICT, "no")
        assert not self.stack.__exit__(Refused, refusal, None)

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        if self.begun is not None:
            yield self.begun
            return
        with self.store.write() as transaction:
            yield transaction

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        if self.begun is not None:
            yield self.begun
            return
        with self.store.read() as reading:
            yield reading

    def save(self, changes: Changes) -> None:
        with self.writing() as transaction:
            transaction.save(changes)

    # The outbox and news.

    def append(self, token: str, news: str = "", skip: str = "0") -> None:
        change = new_change(token, self.now)
        with self.writing() as transaction:
            position = transaction.append(change, news.encode(), int(skip))
        change = msgspec.structs.replace(change, sequence=position.sequence)
        assert change.position == position
        self.appended[token] = change, news.encode()

    def position(self, sequence: str, token: str) -> None:
        with self.reading() as reading:
            assert reading.position() == Position(int(sequence), token)

    def changes(self, after: str, limit: str, *expected: str) -> None:
        with self.reading() as reading:
            found = reading.changes_after(int(after), int(limit))
        assert found == [self.appended[token][0] for token in expected]

    def trim(self, before: str, limit: str, count: str) -> None:
        with self.writing() as transaction:
            assert transaction.trim(self.moment(before), int(limit)) == int(count)

    def news(self, after: str, limit: str, *expected: str) -> None:
        with self.reading() as reading:
            found = reading.news_after(int(after), int(limit))
        told = [self.appended[token] for token in expected]
        assert [(row.sequence, row.at, row.items) for row in found] == [
            (change.sequence, change.at, items) for change, items in told
        ]

    def trim_news(self, before: str, limit: str, count: str, trimmed: str) -> None:
        with self.writing() as transaction:
            assert transaction.trim_news(self.moment(before), int(limit)) == int(count)
            assert transaction.news_trimmed() == int(trimmed)

    def set_back(self) -> None:
        with self.writing() as transaction:
            transaction.set_back(self.now, self.now)

    # Maintenances and operations.

    def operation(
        self, name: str, status: str, ended: str = "", awaited: str = "", shows: str = ""
    ) -> None:
        fields: dict[str, Any] = {"ended_at": self.moment(ended)} if ended else {}
        fields["awaited"] = tuple(listed(awaited))
        events = [event(shows, "web", "Web-0")] if shows else []
        made = operation(name, *events, status=EventStatus(status), **fields)
        self.save(with_maintenances(made))

    def maintenance(
        self, number: str, key: str = "", state: str = "announced", units: str = ""
    ) -> None:
        states = map(UnitState, listed(units))
        made = values.maintenance(int(number), MaintenanceState(state), *states)
        made = msgspec.structs.replace(made, idempotency_key=key)
        self.save(Changes(maintenances=(made,)))

    def next_number(self, number: str) -> None:
        with self.writing() as transaction:
            assert transaction.next_maintenance_number() == int(number)

    def skip_numbers(self, count: str) -> None:
        with self.writing() as transaction:
            transaction.skip_maintenance_numbers(int(count))

    def purge(self, before: str, limit: str, count: str) -> None:
        with self.writing() as transaction:
            assert transaction.purge(self.moment(before), int(limit)) == int(count)

    def maintenances(self, numbers: str, *expected: str) -> None:
        with self.reading() as reading:
            found = reading.maintenances([*map(int, listed(numbers))])
        assert sorted(map(str, found)) == [*expected]

    def of_key(self, key: str, number: str) -> None:
        with self.reading() as reading:
            found = reading.maintenance_of_key(key)
        assert (str(found.number) if found else "nothing") == number

    def of_event(self, name: str, *expected: str) -> None:
        with self.reading() as reading:
            assert [*reading.operations_of_events([name])] == [*expected]

    def of_maintenance(self, number: str, *expected: str) -> None:
        with self.reading() as reading:
            assert [*reading.operations_of_maintenance(int(number))] == [*expected]

    def history(self, machine_key: str, *expected: str) -> None:
        with self.reading() as reading:
            page = reading.history(HistoryQuery(machine=machine_key))
        assert [one.id for one in page.operations] == [*expected]

    def outcomes(self, numbers: str, *expected: str) -> None:
        with self.reading() as reading:
            found = reading.outcomes([*map(int, listed(numbers))])
        told = [f"{n}:{status}:{count}" for n in found for status, count in found[n].items()]
        assert sorted(told) == [*expected]

    def ended(self, since: str, limit: str, *expected: str) -> None:
        with self.reading() as reading:
            found = reading.ended(self.moment(since), int(limit))
        assert [one.id for one in found] == [*expected]

    def ends(self, since: str, *expected: str) -> None:
        with self.reading() as reading:
            found = reading.ends(self.moment(since))
        assert {f"{status}:{count}" for status, count in found.items()} == {*expected}

    def put_setting(self, name: str, value: str) -> None:
        with self.writing() as transaction:
            transaction.put_setting(name, value)

    def setting(self, name: str, value: str) -> None:
        with self.reading() as reading:
            assert reading.setting(name) == (None if value == "nothing" else value)

    # Replicas, machines and relays.

    def sighting(self, told: str) -> dict[str, Sighting]:
        """A machine that asked at a time, and what its agent said: `web-0@1m:held:x`."""
        asked, agent, reason, *_ = [*told.split(":"), "", ""]
        name, _, at = asked.partition("@")
        said = {"agent": agent or None, "reason": reason}
        return seen(name, asked_at=self.moment(at) if at else self.now, **said)

    def sightings_of(self, told: tuple[str, ...]) -> dict[str, Sighting]:
        return {name: one for each in told for name, one in self.sighting(each).items()}

    def machines(self, *names: str) -> None:
        self.save(Changes(scopes=(WEB,), machines=tuple(map(machine, names))))

    def remove_machine(self, *names: str) -> None:
        self.save(Changes(removed_machines=names))

    def beat(self, name: str, *sightings: str, applied: str = "0") -> None:
        told = replica(name, beat_at=self.now, applied=int(applied))
        self.store.beat(told, self.sightings_of(sightings))

    def see(self, *sightings: str) -> None:
        self.store.see(self.sightings_of(sightings), self.now)

    def replicas(self, *expected: str) -> None:
        with self.reading() as reading:
            found = reading.replicas()
        assert [f"{name}:{each.applied}" for name, each in sorted(found.items())] == [*expected]

    def sightings(self, *expected: str) -> None:
        with self.reading() as reading:
            assert reading.sightings() == self.sightings_of(expected)

    def hear(self, host: str, by: str = "a") -> None:
        self.store.hear([relay(host, self.now, replica=by)])

    def mark(self, host: str, held: str = "") -> None:
        with self.writing() as transaction:
            transaction.mark_relay(host, self.moment(held) if held else None)

    def forget(self, host: str) -> None:
        with self.writing() as transaction:
            transaction.forget_relay(host)

    def relays(self, *expected: str, hosts: str = "", since: str = "") -> None:
        """Compare relays, told as `h1@1m:a`: when it was heard, and by whom."""
        asked = (listed(hosts) if hosts else None, self.moment(since) if since else None)
        with self.reading() as reading:
            found = reading.relays(*asked)
        told = {}
        for each in expected:
            heard, by, *held = each.split(":")
            host, _, at = heard.partition("@")
            held_for = self.moment(held[0]) if held else None
            told[host] = relay(host, self.moment(at), replica=by, held_for=held_for)
        assert found == told

    # Webhooks, tokens and records.

    def webhook(self, name: str, url: str = "https://a.example/") -> None:
        with self.writing() as transaction:
            transaction.put_webhooks([webhook(name, url)])

    def remove_webhooks(self, *names: str) -> None:
        with self.writing() as transaction:
            transaction.remove_webhooks(names)

    def webhooks(self, *expected: str) -> None:
        with self.reading() as reading:
            found = reading.webhooks()
        assert [f"{name}:{each.url}" for name, each in found.items()] == [*expected]

    def token(self, name: str, role: str = "viewer", revokes: str = "") -> None:
        times: dict[str, Any] = {"created_at": NOW, "expires_at": None}
        made = Token(
            name=name, role=AccessRole(role), digest=f"of {name}", created_by="root", **times
        )
        self.save(Changes(tokens=(made,), revoked_tokens=tuple(listed(revokes))))

    def revoke(self, *names: str) -> None:
        self.save(Changes(revoked_tokens=names))

    def tokens(self, *expected: str) -> None:
        with self.reading() as reading:
            found = reading.tokens()
        assert [f"{name}:{each.role}" for name, each in found.items()] == [*expected]

    def record(self, by: str, outcome: str = DONE, deed: str = "") -> None:
        made = AuditRecord(
            at=self.now,
            by=by,
            role=AccessRole.OPERATOR,
            address="10.0.0.1",
            action="POST /v1/approvals",
            deed=Deed[deed] if deed else "",
            detail="1.1",
            outcome=outcome,
            request=f"of {by}",
        )
        with self.writing() as transaction:
            transaction.record([made])

    def audit(self, *expected: str, logins: str = "yes", **query: str) -> None:
        asked: dict[str, Any] = dict(query)
        for name in asked.keys() & {"since", "until"}:
            asked[name] = self.moment(asked[name])
        wanted = msgspec.convert(asked | {"logins": logins == "yes"}, AuditQuery, strict=False)
        with self.reading() as reading:
            assert [str(one.sequence) for one in reading.audit(wanted)] == [*expected]

    def purge_audit(
        self, before: str, count: str, limit: str = "100", refusals: str = "100"
    ) -> None:
        with self.writing() as transaction:
            found = transaction.purge_audit(self.moment(before), int(limit), refusals=int(refusals))
        assert found == int(count)
