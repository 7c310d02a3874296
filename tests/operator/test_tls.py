"""The operators' TCP socket with TLS, as the service sets it up."""

import asyncio
import http.client
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

import patience
from forewarn.client import transport
from forewarn.server import secret_files
from forewarn.server.operator import connections
from forewarn.server.secret_files import SecretUnusable
from forewarn.store.sqlite import InMemoryStore
from server.running import Running, settings_in

CERTIFICATES = Path(__file__).with_name("certificates")


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


def test_the_address_says_https_and_its_own_origin_is_served(service: Running) -> None:
    url = service.opened.operators[1]
    assert url.startswith("https://127.0.0.1:")
    assert ask(service, "first") == 200
    assert ask(service, "first", Origin=url) == 200
    assert ask(service, "first", Origin=url.replace("https:", "http:")) == 403


def test_a_renewed_certificate_is_read_at_a_reload(service: Running, folder: Path) -> None:
    put("second", folder)
    assert ask(service, "first") == 200
    service.reload()
    assert ask(service, "second") == 200
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(service, "first")


def test_a_certificate_that_does_not_fit_its_key_changes_nothing(
    service: Running, folder: Path
) -> None:
    shutil.copy(CERTIFICATES / "second.pem", folder / "tls.pem")
    service.reload()
    assert ask(service, "first") == 200


def test_the_client_verifies_by_the_file_that_it_is_given(service: Running) -> None:
    url = f"{service.opened.operators[1]}/healthz"
    trusted = str(CERTIFICATES / "first.pem")
    assert transport.request("GET", url, seconds=patience.SECONDS, ca_file=trusted).status == 200
    for file in (None, str(CERTIFICATES / "second.pem")):
        with pytest.raises(transport.RequestFailed) as failed:
            transport.request("GET", url, seconds=patience.SECONDS, ca_file=file)
        assert isinstance(failed.value.__cause__, ssl.SSLCertVerificationError)


@pytest.mark.parametrize(
    ("certificate", "key"),
    [("none.pem", "first.key"), ("first.pem", "second.key"), ("first.pem", ""), ("first.key", "")],
)
def test_files_that_cannot_be_used_are_named(certificate: str, key: str) -> None:
    with pytest.raises(SecretUnusable, match=certificate):
        secret_files.tls_context(CERTIFICATES / certificate, CERTIFICATES / key if key else None)


def test_whoever_sends_the_first_bytes_at_once_is_answered(service: Running) -> None:
    assert {ask(service, "first") for _ in range(40)} == {200}


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
