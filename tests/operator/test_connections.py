"""Strangers on the operators' TCP socket, and TLS."""

import asyncio
import contextlib
import http.client
import os
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

import patience
from forewarn.cli import main
from forewarn.cli.exits import ExitStatus
from forewarn.clock import SystemClock
from forewarn.control.accounts import OperatorRequest
from forewarn.server import secret_files, sockets
from forewarn.server.operator import auth, connections, table
from forewarn.server.operator.application import RoutedPath
from forewarn.server.operator.connections import OperatorConnection, Server
from forewarn.server.secret_files import SecretUnusable
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import ErrorCode
from server.running import Running, settings_in
from stories import Rows, split, stories_beside

TOKEN = "0123456789abcdef0123456789abcdef"
ASK = f"GET /v1/x HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
LONG = 2 * patience.SECONDS
"""The time of a head, where no head is to be late."""

LARGE = 32 * 1024 * 1024
"""Bytes of an answer: more than all buffers of the system hold."""


async def application(
    scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    if scope["path"] == "/v1/slow":
        while (await receive())["type"] != "http.disconnect":
            pass
    size = LARGE if scope["path"] == "/v1/large" else 2
    headers = [(b"content-length", b"%d" % size)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok" * (size // 2)})


def counted(served: "Served") -> dict[str, float]:
    """Return how often each limit was reached, those that never were left out."""
    (family,) = served.reached.counter.collect()
    return {one.labels["reason"]: one.value for one in family.samples if one.value}


def auth_context() -> auth.AuthContext:
    """Let in whoever has the token; nobody else comes."""
    nothing_recorded: Any = None
    made = auth.AuthContext(nothing_recorded, SystemClock(), SystemClock(), lambda: "an id")
    made.accounts.let_in_by_file(TOKEN)
    return made


CERTIFICATES = Path(__file__).with_name("certificates")
CERTIFICATE = CERTIFICATES / "first.pem"
Reading = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Served:
    def __init__(self, port: int, server: Server, reached: connections.ReachedLimits) -> None:
        self.port = port
        self.server = server
        self.reached = reached
        self.open: list[asyncio.StreamWriter] = []

    async def send(self, data: bytes, tls: ssl.SSLContext | None = None) -> Reading:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=tls)
        self.open.append(writer)
        writer.write(data)
        return reader, writer


@contextlib.asynccontextmanager
async def serving(
    head_seconds: float,
    tls: Callable[[], ssl.SSLContext] | None = None,
    slow_seconds: float = connections.SLOW_SECONDS,
) -> AsyncIterator[Served]:
    opened = sockets.open_tcp("127.0.0.1", 0)
    reached = connections.ReachedLimits()
    gate = auth.AuthMiddleware(application, auth_context(), ())
    server = connections.Server(gate, reached, head_seconds, tls=tls, slow_seconds=slow_seconds)
    running = asyncio.create_task(server.serve(sockets=[opened]))
    served = Served(opened.getsockname()[1], server, reached)
    try:
        yield served
    finally:
        for writer in served.open:
            writer.transport.abort()
        server.should_exit = True
        await running


BYTES = {
    "half": ASK[:20],
    "rest": ASK[20:],
    "ask": ASK,
    "health": b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "nothing": b"",
    "hello": b"\x16\x03\x01",
    "nonsense": b"no HTTP\r\n\r\n",
    "long-head": b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000,
}


class Strangers:
    """Connections by their names; each public method is a verb."""

    def __init__(self, served: Served, logs: list[Any]) -> None:
        self.served = served
        self.logs = logs
        self.open: dict[str, Reading] = {}

    async def sends(self, name: str, what: str, times: str = "1", secure: str = "") -> None:
        tls = ssl.create_default_context(cafile=CERTIFICATE) if secure else None
        for _ in range(int(times)):
            self.open[name] = await self.served.send(BYTES[what], tls)

    async def goes_on(self, name: str, what: str) -> None:
        self.open[name][1].write(BYTES[what])

    async def answered(self, name: str) -> None:
        assert (await self.open[name][0].readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200")

    async def closed(self, name: str) -> None:
        with contextlib.suppress(ConnectionError):
            assert await self.open[name][0].read() == b""

    async def refused(self, name: str) -> None:
        with contextlib.suppress(ConnectionError):
            assert not (await self.open[name][0].read()).startswith(b"HTTP/1.1 200")

    async def counted(self, **counts: str) -> None:
        found = {name.replace("-", "_"): count for name, count in counted(self.served).items()}
        assert found == {name: float(count) for name, count in counts.items()}

    async def logged(self, *reasons: str) -> None:
        assert [line["reason"] for line in self.logs] == [*reasons]
        assert {line["address"] for line in self.logs} == {"127.0.0.1"}


@pytest.mark.parametrize("rows", stories_beside(__file__, "connections.txt"))
async def test_strangers_keep_no_operator_out(rows: Rows) -> None:
    (_, _, how), *told = [split(row) for _, row in rows if row and not row.startswith("#")]
    tls = context if "tls" in how else None
    with capture_logs() as logs:
        async with serving(float(how.get("head", LONG)), tls) as served:
            strangers = Strangers(served, logs)
            for verb, words, options in told:
                await getattr(strangers, verb.replace("-", "_"))(*words, **options)


@pytest.mark.parametrize("secure", [False, True])
async def test_of_a_large_answer_no_more_is_handed_over_than_its_reader_takes(
    secure: bool,
) -> None:
    trusting = ssl.create_default_context(cafile=CERTIFICATE) if secure else None
    async with serving(LONG, context if secure else None) as served:
        reader, _ = await served.send(ASK.replace(b"/v1/x", b"/v1/large"), trusting)
        await reader.readuntil(b"\r\n\r\n")
        (connection,) = served.server.server_state.connections
        cycle = cast("OperatorConnection", connection).cycle
        assert not cycle.response_complete
        left = LARGE
        while left > 0:
            waiting = connection.transport.get_write_buffer_size()
            assert waiting <= 3 * connections.PART_BYTES
            left -= len(await reader.read(left))
        assert cycle.response_complete


async def test_a_reader_that_takes_nothing_of_a_large_answer_is_cut_off() -> None:
    async with serving(LONG, slow_seconds=0.1) as served:
        reader, writer = await served.send(ASK.replace(b"/v1/x", b"/v1/large"))
        writer.transport.pause_reading()
        await patience.reached(lambda: "slow-reader" in counted(served))
        writer.transport.resume_reading()
        with contextlib.suppress(ConnectionError):
            assert len(await reader.read()) < LARGE


def test_an_address_is_logged_again_after_a_minute() -> None:
    reached = connections.ReachedLimits()
    with capture_logs() as told:
        for now in (0.0, 1.0, 59.0, 60.0, 61.0):
            reached.add(connections.OperatorLimit.CONNECTIONS, f"10.0.0.{now:.0f}", now)
    assert [line["address"] for line in told] == ["10.0.0.0", "10.0.0.60"]
    assert [line["not_logged_before"] for line in told] == [0, 2]


async def test_where_all_have_shown_the_token_one_more_is_answered_503_and_counted() -> None:
    async with serving(LONG) as served:
        for _ in range(connections.MAX_CONNECTIONS):
            await served.send(ASK.replace(b"/x", b"/slow"))
        while True:  # the last of them may not have been read yet
            reader, _ = await served.send(ASK)
            status = (await reader.readline()).split()[1]
            if counted(served):
                break
        assert status == b"503"
        assert counted(served) == {"connections": 1}


def context() -> ssl.SSLContext:
    return secret_files.tls_context(CERTIFICATE, CERTIFICATE.with_suffix(".key"))


async def test_a_server_without_a_request_under_way_ends_at_once() -> None:
    opened = sockets.open_tcp("127.0.0.1", 0)
    gate = auth.AuthMiddleware(application, auth_context(), ())
    server = connections.Server(gate, connections.ReachedLimits())
    running = asyncio.create_task(server.serve(sockets=[opened]))
    reader, writer = await asyncio.open_connection(*opened.getsockname())
    writer.write(ASK)
    await reader.readuntil(b"\r\n\r\nok")
    server.should_exit = True
    await patience.settled()
    assert running.done()  # by its loop's turns alone: no time has to pass
    await running
    writer.close()


async def test_a_request_that_a_stop_gives_up_is_answered() -> None:
    begun, told = asyncio.Event(), asyncio.Queue[Any]()

    async def handler() -> None:
        begun.set()
        await asyncio.Event().wait()

    path = RoutedPath({"GET": table.Route(handler, "GET", "/v1/x", None)})
    request = OperatorRequest(by="ann", role=None, address="::1", action="GET /v1/x", request="1")
    scope = {"type": "http", "method": "GET", "path": "/v1/x", "headers": [], "query_string": b""}
    given = {auth.REQUEST: request, table.BACKEND: None, table.PAGE_CONTEXT: None}
    asking = asyncio.create_task(path(scope | given, told.get, told.put))
    await begun.wait()
    asking.cancel()
    await asking
    assert (await told.get())["status"] == 503
    assert request.outcome is ErrorCode.UNKNOWN_OUTCOME


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    put("first", tmp_path)
    return tmp_path


def put(name: str, folder: Path) -> None:
    """Renew the service's certificate and key."""
    shutil.copy(CERTIFICATES / f"{name}.pem", folder / "tls.pem")
    shutil.copy(CERTIFICATES / f"{name}.key", folder / "tls.key")


@pytest.fixture
def service(folder: Path) -> Iterator[Running]:
    files = {"tls_certificate": str(folder / "tls.pem"), "tls_key": str(folder / "tls.key")}
    wanted = settings_in(folder, listen="127.0.0.1:0", **files)
    with Running(wanted, InMemoryStore()) as running:
        yield running


def ask(service: Running, certificate: str, **headers: str) -> int:
    """Return the status of an answer from who has this certificate."""
    address = service.opened.operators[1].removeprefix("https://")
    trusting = ssl.create_default_context(cafile=CERTIFICATES / f"{certificate}.pem")
    connection = http.client.HTTPSConnection(address, timeout=patience.SECONDS, context=trusting)
    token = Path(service.settings.operator.token_file).read_text(encoding="ascii").strip()
    try:
        authorization = {"Authorization": f"Bearer {token}"}
        connection.request("GET", "/v1/clock", headers=authorization | headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_its_own_origin_is_served_and_a_renewed_certificate_is_read_at_a_reload_if_it_fits(
    service: Running, folder: Path
) -> None:
    url = service.opened.operators[1]
    assert url.startswith("https://127.0.0.1:")
    assert {ask(service, "first") for _ in range(40)} == {200}  # also who sends at once
    assert ask(service, "first", Origin=url) == 200
    assert ask(service, "first", Origin=url.replace("https:", "http:")) == 403
    shutil.copy(CERTIFICATES / "second.pem", folder / "tls.pem")
    service.reload()
    assert ask(service, "first") == 200  # the key is not its
    alerts = service.client().get("/v1/alerts")["items"]
    assert [each["kind"] for each in alerts] == ["failing"]
    put("second", folder)
    assert ask(service, "first") == 200
    service.reload()
    assert service.client().get("/v1/alerts")["items"] == []
    assert ask(service, "second") == 200
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(service, "first")


def test_the_authority_is_blamed_only_for_a_certificate_of_the_right_name(
    service: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port = service.opened.operators[1].rpartition(":")[2]
    for host, trusted, is_blamed in (
        ("[::ffff:127.0.0.1]", "first", False),
        ("127.0.0.1", "second", True),
    ):
        monkeypatch.setenv("FOREWARN_SET_OPERATOR__TLS_CA", str(CERTIFICATES / f"{trusted}.pem"))
        events = ["events", "--operator", f"https://{host}:{port}"]
        assert main.execute(events) == ExitStatus.UNREACHABLE
        assert ("TLS_CA" in capsys.readouterr().err) is is_blamed


@pytest.mark.parametrize(
    ("certificate", "key"),
    [("none.pem", "first.key"), ("first.pem", "second.key"), ("first.pem", ""), ("first.key", "")],
)
def test_files_that_cannot_be_used_are_named(certificate: str, key: str) -> None:
    with pytest.raises(SecretUnusable, match=certificate):
        secret_files.tls_context(CERTIFICATES / certificate, CERTIFICATES / key if key else None)


def test_a_key_that_nobody_writes_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key")
    with pytest.raises(SecretUnusable, match="ordinary file"):
        secret_files.tls_context(CERTIFICATES / "first.pem", tmp_path / "key")


def test_what_a_client_sends_before_it_is_accepted_is_read() -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not for this platform")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "first.pem", CERTIFICATES / "first.key")
    trusting = ssl.create_default_context(cafile=CERTIFICATES / "first.pem")
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        trusting.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1").do_handshake()
    hello = outgoing.read()

    async def greet() -> list[bytes]:
        listening = socket.create_server(("127.0.0.1", 0))
        clients = [socket.create_connection(listening.getsockname()) for _ in range(20)]
        for client in clients:
            client.sendall(hello)
            client.setblocking(False)
        server = connections.Server(nobody, connections.ReachedLimits(), tls=lambda: context)
        serving = asyncio.ensure_future(server.serve([listening]))
        loop = asyncio.get_running_loop()
        try:
            return [await loop.sock_recv(client, 3) for client in clients]
        finally:
            for client in clients:
                client.close()
            server.should_exit = True
            await serving

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        answers = runner.run(greet())
    assert set(answers) == {b"\x16\x03\x03"}  # each is a handshake's


async def nobody(scope: object, receive: object, send: object) -> None:
    raise AssertionError((scope, receive, send))  # nobody has asked yet
