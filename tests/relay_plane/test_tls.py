"""Relays of other machines reach the service with TLS alone."""

import shutil
import ssl
from pathlib import Path

import msgspec
import pytest

from forewarn.server import settings
from forewarn.server.secret_files import SecretUnusable
from forewarn.store.sqlite import InMemoryStore
from patience import eventually
from relay_plane.served import Served, with_relays

CERTIFICATES = Path(__file__).parents[1] / "operator" / "certificates"


def encrypted(folder: Path, certificate: str = "first") -> settings.Settings:
    for kind in ("pem", "key"):
        shutil.copy(CERTIFICATES / f"{certificate}.{kind}", folder / f"tls.{kind}")
    files = {"tls_certificate": str(folder / "tls.pem"), "tls_key": str(folder / "tls.key")}
    relay = settings.RelaySettings(listen="127.0.0.1:0", **files)
    return msgspec.structs.replace(with_relays(folder), relay=relay)


def trust(certificate: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=CERTIFICATES / f"{certificate}.pem")


def test_a_relay_that_trusts_the_certificate_is_told_its_host_and_waits_also_when_it_is_renewed(
    tmp_path: Path,
) -> None:
    with Served(encrypted(tmp_path), InMemoryStore()) as running:
        assert running.relays.startswith("https://127.0.0.1:")
        relay = running.relay("h0")
        relay.trusting = trust("second")
        with pytest.raises(ssl.SSLCertVerificationError):
            relay.host()
        relay.trusting = trust("first")
        assert relay.host().host == "h0"
        with relay.waiting():
            eventually(running.waiting_relays, 1)
        eventually(running.waiting_relays, 0)  # its connection is lost
        encrypted(tmp_path, "second")
        running.reload()
        relay.trusting = trust("second")
        assert relay.host("").host == "h0"


def test_a_service_without_a_usable_certificate_does_not_start(tmp_path: Path) -> None:
    wanted = encrypted(tmp_path)
    (tmp_path / "tls.pem").write_text("nothing")
    with pytest.raises(SecretUnusable), Served(wanted, InMemoryStore()):
        pass


@pytest.mark.parametrize(
    "given",
    [
        {"listen": "10.0.0.1:8173", "tls_certificate": "tls.pem"},
        {"listen": "[::1]:8173"},
        {"listen": ""},
    ],
)
def test_with_a_certificate_or_on_loopback_relays_may_ask(given: dict[str, str]) -> None:
    assert settings.RelaySettings(**given).listen == given["listen"]
