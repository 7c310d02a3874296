"""The operators' TCP socket with TLS, as the service sets it up."""

import http.client
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.client import transport
from forewarn.server import secret_files
from forewarn.server.secret_files import SecretUnusable
from forewarn.store import memory
from server.running import WAIT_SECONDS, Running, settings_in

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
    with Running(wanted, memory.MemoryStore()) as running:
        yield running


def ask(service: Running, certificate: str, **headers: str) -> int:
    """Return the status of an answer from who has this certificate."""
    address = service.opened.operators[1].removeprefix("https://")
    trusting = ssl.create_default_context(cafile=CERTIFICATES / f"{certificate}.pem")
    connection = http.client.HTTPSConnection(address, timeout=WAIT_SECONDS, context=trusting)
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
    assert transport.request("GET", url, seconds=WAIT_SECONDS, ca_file=trusted).status == 200
    for file in (None, str(CERTIFICATES / "second.pem")):
        with pytest.raises(transport.RequestFailed) as failed:
            transport.request("GET", url, seconds=WAIT_SECONDS, ca_file=file)
        assert isinstance(failed.value.__cause__, ssl.SSLCertVerificationError)


@pytest.mark.parametrize(
    ("certificate", "key"),
    [("none.pem", "first.key"), ("first.pem", "second.key"), ("first.pem", ""), ("first.key", "")],
)
def test_files_that_cannot_be_used_are_named(certificate: str, key: str) -> None:
    with pytest.raises(SecretUnusable, match=certificate):
        secret_files.tls_context(CERTIFICATES / certificate, CERTIFICATES / key if key else None)
