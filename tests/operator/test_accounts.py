"""Tokens, roles, and the audit log."""

import asyncio
import grp
import os
import pwd
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest

import forked
import patience
from forewarn.clock import ManualClock
from forewarn.control.accounts import OperatorRequest
from forewarn.maintenance.accounts import AuditRecord, Deed, summary
from forewarn.server import secret_files
from forewarn.server.operator import administration, auth, table
from forewarn.server.operator.table import API
from forewarn.store.port import StoreUnavailable
from forewarn.store.sql import Transaction
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import AccessRole
from server.exchange import Exchanges
from server.running import ME, NOON, Client, Running, roles, settings_in

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "api.md"
ROLES = tuple(role for role in AccessRole if role is not AccessRole.RELAY)
"""Those of operators."""


class Full(InMemoryStore):
    """A store that has no room for the audit log when it is told so."""

    full = False

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        with super().write() as transaction:
            if self.full:
                transaction.record = self._refuse  # type: ignore[method-assign]
            yield transaction

    def _refuse(self, records: object) -> None:
        raise StoreUnavailable("no room")


@pytest.fixture
def store() -> Full:
    return Full()


@pytest.fixture
def site(service: Running) -> Exchanges:
    return Exchanges(service)


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exchanges]:
    """A service that the tests of roles share: what they send is refused or empty."""
    wanted = settings_in(tmp_path_factory.mktemp("roles"), listen="127.0.0.1:0")
    with Running(wanted, InMemoryStore(), ManualClock(NOON)) as running:
        yield Exchanges(running)


NEEDED = roles(table.API.routes)
OF_PAGE = roles(table.PAGE.routes)
FORM = "application/x-www-form-urlencoded"
PLANNED = ("PUT /v1/fleet", "POST /v1/maintenances", "POST /v1/hosts/drain")
"""What a viewer may try without doing it."""


@pytest.mark.parametrize("route", [*NEEDED, *OF_PAGE])
def test_each_route_lets_in_its_role_and_those_above_it_alone(
    standing: Exchanges, route: str
) -> None:
    method, path = route.split()
    needed = (NEEDED | OF_PAGE)[route]
    path = re.sub(r"\{[a-z]+\}", "1", path)
    path = path.replace("/stream", "/stream?since=x")  # else its answer has no end
    path += "?dry_run=true" if route in PLANNED else ""
    body: Any = None if method in {"GET", "DELETE"} else {}
    headers = {"Origin": standing.service.opened.operators[1]}
    if route in OF_PAGE and body is not None:
        body, headers = b"", {**headers, "Content-Type": FORM}
    for role in ROLES:
        allowed = needed is None or role.allows(needed)
        if allowed and route == "GET /page/stream":
            continue
        answer = standing.client(role).ask(method, path, body, headers)
        if allowed:
            assert answer.status not in {401, 403} or route == "POST /login", (role, answer.body)
        else:
            assert answer.status == 403, role
            assert route in OF_PAGE or answer.error["facts"] == {"role": role, "needed": needed}
    for nobody in ("stranger", "wrong"):
        refused = standing.client(nobody).ask(method, path, body, headers)
        assert (refused.status == 401) is (needed is not None) or route == "POST /login"


def test_the_page_has_the_table_of_roles() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\S+) \| (`[A-Z]+ /.*) \|$", text, re.MULTILINE)
    told = [(route, role) for role, said in rows for route in re.findall(r"`([^`]+)`", said)]
    assert len(told) == len(NEEDED)
    assert dict(told) == {route: needed or "-" for route, needed in NEEDED.items()}


def test_a_route_without_a_role_keeps_the_service_from_starting() -> None:
    routes = table.RouteTable()
    with pytest.raises(TypeError):
        routes.route("GET", "/v1/new")(table.API.routes[0].handler)


def test_a_token_is_kept_as_its_digest(site: Exchanges, store: Full) -> None:
    token = site.root.ask("POST", "/v1/tokens", {"name": "ann", "role": "viewer"}).json["token"]
    with store.read() as reading:
        kept = reading.tokens()["ann"]
    assert kept.digest == secret_files.digest(token.encode()) != token


# The audit log.


def test_a_change_that_cannot_be_recorded_is_not_made(site: Exchanges, store: Full) -> None:
    store.full = True
    site.check("POST /v1/holds {kind: everything} -> 503 unavailable")
    store.full = False
    site.check("GET /v1/holds -> {holds: []}", "POST /v1/holds {kind: everything} -> 201")


def test_strangers_cannot_fill_the_log() -> None:
    written: list[str] = []
    clock = ManualClock(NOON)

    def record(request: OperatorRequest, outcome: str) -> Future[None]:
        written.append(f"{request.by} {outcome}")
        return Future()

    plane: Any = SimpleNamespace(record=record)
    log = auth.AuditLog(plane, clock)

    def refuse(by: str) -> None:
        request = OperatorRequest(by=by, role=None, address="::1", action="GET /", request="1")
        log.record(request, "unauthorized")

    for _ in range(1000):
        refuse("")
    assert len(written) == auth.OF_STRANGERS.burst
    assert log.dropped.collect()[0].samples[0].value == 1000 - auth.OF_STRANGERS.burst
    refuse("ann")  # whom strangers do not keep out
    assert written[-1].startswith("ann")
    clock.advance(timedelta(seconds=1 / auth.OF_STRANGERS.per_second))
    refuse("")
    refuse("")
    assert len(written) == auth.OF_STRANGERS.burst + 2


def test_a_record_is_one_printable_line_of_bounded_length() -> None:
    request = OperatorRequest(
        by="ann", role=None, address="::1", action="GET /\n" + "x" * 9999, request="1"
    )
    request.detail = "\u202e" * 9999
    record: AuditRecord = request.record(NOON, "done")
    assert record.action.isprintable()
    assert record.detail.isprintable()
    assert len(record.action) + len(record.detail) <= 1000


# Failed log-ins.


def test_failures_of_an_address_are_answered_later_and_later() -> None:
    failures = auth.FailedLogins()

    def fail(address: str = "10.0.0.1", now: float = 0.0) -> float:
        return failures.delay_seconds(auth.FailedLogin.UNKNOWN, address, now)

    assert [fail() for _ in range(11)] == [0, 0, 0, 0, 0, 0.25, 0.5, 1, 2, 4, 4]
    assert fail("10.0.0.2") == 0
    assert fail(now=300.0) == 4
    assert fail(now=600.1) == 0
    counted = {one.labels["reason"]: one.value for one in failures.counter.collect()[0].samples}
    assert counted["unknown"] == 14


def test_the_addresses_of_an_ipv6_network_count_as_one_and_few_are_remembered() -> None:
    failures = auth.FailedLogins()

    def fail(address: str) -> float:
        return failures.delay_seconds(auth.FailedLogin.MISSING, address, 0)

    assert [fail(f"2001:db8::{n}") for n in range(6)][-1] > 0
    assert fail("2001:db8:0:1::1") == 0
    assert {fail(f"fe80::{n}%br0") for n in range(6)} == {0}
    for n in range(3 * auth.MAX_ADDRESSES):
        fail(f"10.0.{n // 256}.{n % 256}")
    assert len(failures._failures) == auth.MAX_ADDRESSES


def test_who_fails_again_and_again_waits_for_the_answer(site: Exchanges) -> None:
    url = site.service.opened.operators[1]
    for _ in range(auth.FREE_FAILURES + 1):
        assert Client(url, "wrong").ask("GET", "/v1/clock").status == 401
    began = time.monotonic()
    assert Client(url, "wrong").ask("GET", "/v1/clock").status == 401
    assert time.monotonic() - began >= 2 * auth.FIRST_DELAY_SECONDS


# The unix socket's users.


NOBODY = 65534
ASK = ("curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}", "--json")


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("curl") is None,
    reason="needs root, to ask as another user, and curl",
)
def test_a_member_of_the_sockets_group_is_an_operator_and_others_are_not_let_in() -> None:
    group = grp.getgrgid(os.getgid())

    def ask(socket: Path, path: str, body: str, *groups: int) -> str:
        argv = [*ASK, body, "--unix-socket", str(socket), f"http://localhost{path}"]
        ids: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": groups}
        return forked.completed(argv, cwd="/", timeout=patience.SECONDS, **ids).stdout

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        folder.chmod(0o755)
        wanted = settings_in(folder, socket_group=group.gr_name)
        with Running(wanted, InMemoryStore(), ManualClock(NOON)) as running:
            path = Path(running.settings.operator.socket)
            assert (path.stat().st_mode & 0o777, path.stat().st_gid) == (0o660, group.gr_gid)
            hold, token = '{"kind": "everything"}', '{"name": "x", "role": "admin"}'
            assert ask(path, "/v1/holds", hold, group.gr_gid) == "201"
            assert ask(path, "/v1/tokens", token, group.gr_gid) == "403"
            assert ask(path, "/v1/holds", hold) == "000"
            records = running.client().get("/v1/audit")["records"]
            held = next(one for one in records if one["action"] == "POST /v1/holds")
            assert (held["role"], held["address"]) == ("operator", f"unix:uid={NOBODY}")
            assert held["by"] == pwd.getpwuid(NOBODY).pw_name


@pytest.mark.parametrize(
    ("user_id", "role"),
    [(0, AccessRole.ADMIN), (os.geteuid(), AccessRole.ADMIN), (54321, AccessRole.OPERATOR)],
)
def test_root_and_the_service_are_admins_others_operators(user_id: int, role: AccessRole) -> None:
    peer = auth.UnixPeer(user_id)
    assert peer == auth.UnixPeer(user_id)
    assert peer.account("ann").role is role


def test_a_user_without_a_name_is_told_by_number() -> None:
    names = auth.UserNames()
    assert asyncio.run(names.of(os.geteuid())) == ME
    assert asyncio.run(names.of(987654321)) == "uid-987654321"
    assert 987654321 not in names._known  # a directory that was away may know it


def test_the_token_of_a_relay_is_no_account(site: Exchanges, store: Full) -> None:
    site.carry_out("POST /v1/relays/tokens {host: h1} -> 201")
    with store.read() as reading:
        (name,) = [name for name, each in reading.tokens().items() if each.host]
    site.check(
        f"DELETE /v1/tokens?name={quote(name, safe='')} -> 404 not-found",
        "DELETE /v1/relays/tokens?host=h1 -> 200",
    )


def record(deed: str, detail: str = "", outcome: str = "done") -> AuditRecord:
    return AuditRecord(
        at=NOON,
        by="ann",
        role=AccessRole.OPERATOR,
        address="::1",
        action="POST /v1/things",
        deed=deed,
        detail=detail,
        outcome=outcome,
        request="1",
    )


def test_a_request_that_is_refused_early_is_told_by_its_handlers_name() -> None:
    assert summary(record("hold", outcome="forbidden")) == "refused: hold"
    assert summary(record("", outcome="unauthorized")) == "refused: POST /v1/things"
    handlers = {route.handler.__name__ for route in API.routes if route.method != "GET"}
    pages = {Deed.LOG_IN, Deed.LOG_OUT, Deed.LOG_IN_LINK, Deed.EXPIRE}
    assert handlers - {administration.create_page_token.__name__} == {*Deed} - pages
