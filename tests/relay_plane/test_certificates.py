"""A relay may show its host's certificate in place of a token."""

import http.client
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import patience
from authority import Authority
from forewarn.server import relay_feed, settings
from forewarn.server.relay_feed import GuestApproval, RelayState
from forewarn.server.secret_files import SecretUnusable
from forewarn.settings import FieldError
from forewarn.store.sqlite import InMemoryStore
from patience import eventually
from relay_plane.served import AskingRelay, Served
from relay_plane.test_plane import beside, refusal
from relay_plane.test_tls import encrypted, trust
from server.running import fleet

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates") / "ours")


@pytest.fixture
def service(tmp_path: Path, authority: Authority) -> Iterator[Served]:
    with Served(with_certificates(tmp_path, authority), InMemoryStore()) as running:
        assert running.client().ask("PUT", "/v1/fleet", fleet()).status == 200
        yield running


def with_certificates(folder: Path, authority: Authority, **more: Any) -> settings.Settings:
    known = encrypted(folder)
    relay = msgspec.structs.replace(known.relay, client_ca=str(authority.certificate), **more)
    return msgspec.structs.replace(known, relay=relay)


def showing(service: Served, certificate: Path | None) -> AskingRelay:
    """What asks by a certificate, and without a token."""
    relay = AskingRelay(service.relays, "")
    relay.trusting = trust("first")
    if certificate is not None:
        relay.trusting.load_cert_chain(certificate)
    return relay


def shown(service: Served, host: str) -> Any:
    (found,) = (h for h in service.client().get("/v1/hosts")["hosts"] if h["name"] == host)
    return found["relay"]


@pytest.mark.parametrize(
    ("names", "common_name", "host"),
    [
        (("DNS:h0",), "", "h0"),
        (("DNS:h0", "DNS:h1"), "", "h0"),
        (("DNS:h0",), "h1", "h0"),
        (("IP:10.0.0.1",), "h0", "h0"),
        ((), "h0", "h0"),
    ],
)
def test_a_certificate_is_for_the_host_that_it_names_first(
    service: Served, authority: Authority, names: tuple[str, ...], common_name: str, host: str
) -> None:
    certificate = authority.sign("named", *names, common_name=common_name)
    assert showing(service, certificate).host().host == host


def test_a_certificate_reads_and_approves_for_its_own_host_alone(
    service: Served, authority: Authority
) -> None:
    relay = showing(service, authority.sign("other", "DNS:h1"))
    told = relay.host()
    assert {machine.name for machine in told.machines} == {"web-1", "batch_0"}
    foreign = GuestApproval(machine="web-0", address="10.0.0.10", event_ids=("X",))
    answer = relay.ask("POST", relay_feed.APPROVALS_PATH, foreign)
    assert refusal(answer) == (403, "not-eligible")


def test_a_certificate_of_another_authority_is_refused_and_so_is_none(
    service: Served, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path / "theirs").sign("h0", "DNS:h0")
    with pytest.raises((OSError, http.client.HTTPException)):
        showing(service, stranger).request()
    assert refusal(showing(service, None).request()) == (401, "unauthorized")
    assert shown(service, "h0") is None


@pytest.mark.parametrize("name", ["", "x" * 1000])
def test_a_certificate_that_names_no_host_is_refused(
    service: Served, authority: Authority, name: str
) -> None:
    names = (f"DNS:{name}",) if name else ()
    asked = showing(service, authority.sign("nobody", *names)).request()
    assert refusal(asked) == (401, "unauthorized")


def test_a_token_is_valid_beside_certificates(service: Served, authority: Authority) -> None:
    by_token = service.relay("h0")
    by_token.trusting = trust("first")
    assert by_token.host().host == "h0"
    by_certificate = showing(service, authority.sign("beside", "DNS:h0"))
    assert by_certificate.host().host == "h0"
    eventually(lambda: len(service.token_states("h0")), 2)
    assert by_token.request("").status == 200
    # A token that is sent decides, whatever certificate is shown.
    by_certificate.token = "wrong"
    assert refusal(by_certificate.request()) == (401, "unauthorized")
    # A new token replaces the token before, and no certificate.
    newer = service.relay("h0")
    newer.trusting = trust("first")
    assert newer.request("").status == 200
    eventually(lambda: by_token.request("").status, 401)
    assert len(service.token_states("h0")) == 2


def test_a_relay_that_shows_a_certificate_is_known_and_can_be_forgotten(
    service: Served, authority: Authority
) -> None:
    relay = showing(service, authority.sign("known", "DNS:h0"))
    relay.host(state=RelayState(version="1.2"))
    eventually(lambda: (shown(service, "h0") or {}).get("shows_certificate"), True)
    assert (shown(service, "h0")["state"], shown(service, "h0")["version"]) == ("present", "1.2")
    first = shown(service, "h0")["token_created_at"]
    assert service.client().ask("DELETE", "/v1/relays/tokens?host=h0").json["revoked"] == 1
    assert shown(service, "h0") is None
    assert relay.request("").status == 200  # it is still valid: see the revocation lists
    eventually(lambda: (shown(service, "h0") or {}).get("token_created_at"), first)


def test_a_revoked_certificate_is_refused_and_all_others_are_shown_again(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path / "ours")
    lost, kept = authority.sign("lost", "DNS:h0"), authority.sign("kept", "DNS:h1")
    more = {"client_crl": str(authority.revocations)}
    wanted = with_certificates(tmp_path, authority, **more)
    with Served(wanted, InMemoryStore()) as running:
        waiting = []
        for certificate in (lost, kept):
            relay = showing(running, certificate)
            relay.host()
            waiting.append(beside(relay.request))
        by_token = running.relay("h2")
        by_token.trusting = trust("first")
        by_token.host()
        beside(by_token.request)
        eventually(running.waiting_relays, 3)
        authority.revoke(lost)
        running.reload()
        answers = [each.result(patience.SECONDS) for each in waiting]
        assert [refusal(answer) for answer in answers] == [(503, "unavailable")] * 2
        assert {answer.headers["connection"] for answer in answers} == {"close"}
        eventually(running.waiting_relays, 1)  # who came by a token waits on
        with pytest.raises((OSError, http.client.HTTPException)):
            showing(running, lost).request()
        assert showing(running, kept).host().host == "h1"


def test_a_list_that_cannot_be_read_changes_nothing(tmp_path: Path, authority: Authority) -> None:
    lists = tmp_path / "crl.pem"
    shutil.copy(authority.revocations, lists)
    wanted = with_certificates(tmp_path, authority, client_crl=str(lists))
    certificate = authority.sign("still", "DNS:h0")
    with Served(wanted, InMemoryStore()) as running:
        lists.write_text("nothing")
        running.reload()
        assert showing(running, certificate).host().host == "h0"
    with pytest.raises(SecretUnusable), Served(wanted, InMemoryStore()):
        pass


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"client_ca": "ca.pem"}, "client_ca"),
        ({"client_crl": "crl.pem", "tls_certificate": "tls.pem"}, "client_crl"),
    ],
)
def test_certificates_need_tls_and_lists_an_authority(given: dict[str, str], place: str) -> None:
    with pytest.raises(FieldError) as refused:
        settings.RelaySettings(listen="127.0.0.1:8173", **given)
    assert refused.value.field == place
