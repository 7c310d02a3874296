"""Chats and webhooks through the proxy that the agent's environment names."""

import base64
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent import workplace
from agent.workplace import Begun, Done, Site
from authority import Authority
from forewarn.agent.actions.action import ActionFailed
from forewarn.client import proxies
from http_proxy import HttpProxy

NOWHERE = "chat.invalid"
"""A name that no name server knows: only a proxy can reach it."""


@pytest.fixture
def site() -> Iterator[Site]:
    with workplace.site() as server:
        yield server


def test_a_request_goes_through_the_proxy_of_the_environment(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HttpProxy(site.server_port) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//us%40er:pass@"))
        done = Done(http={"url": f"http://{NOWHERE}/drain?now=1", "body": "x" * 60_000})
        assert done.prepare() == "answered 200"
    (lines,) = proxy.asked
    assert lines[0] == f"POST http://{NOWHERE}/drain?now=1 HTTP/1.1"
    secret = base64.b64encode(b"us@er:pass").decode()
    assert f"Proxy-Authorization: Basic {secret}" in lines
    ((method, path, headers, body),) = site.asked
    assert (method, path, headers["host"], len(body)) == ("POST", "/drain?now=1", NOWHERE, 60_000)


def test_a_chat_by_https_is_reached_by_a_tunnel_and_its_certificate_checked(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "ca")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.sign("chat", f"DNS:{NOWHERE}"))
    site.socket = context.wrap_socket(site.socket, server_side=True)
    with HttpProxy(site.server_port) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        assert Done(notify={"slack": f"https://{NOWHERE}/x"}).prepare() == "answered 200"
        with pytest.raises(ActionFailed, match="certificate"):
            Done(notify={"slack": "https://other.invalid/x"}).prepare()
    assert [lines[0] for lines in proxy.asked] == [
        f"CONNECT {NOWHERE}:443 HTTP/1.1",
        "CONNECT other.invalid:443 HTTP/1.1",
    ]
    assert len(site.asked) == 1


def test_a_proxy_that_refuses_says_so_and_nothing_was_sent(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HttpProxy(site.server_port, refusal="407 Who are you") as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        done = Done(http={"url": f"https://{NOWHERE}/"})
        begun = Begun(done.run, done.action.act)
        assert "407 Who are you" in begun.end()
        assert not begun.final  # so it may be retried


def test_what_is_no_http_proxy_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    for named in ("socks5://127.0.0.1:1", "http://:3128", "http://h:x"):
        monkeypatch.setenv("http_proxy", named)
        with pytest.raises(ActionFailed, match="invalid proxy"):
            Done(http={"url": f"http://{NOWHERE}/"}).prepare()


def test_a_server_of_this_machine_is_asked_directly(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert Done(http={"url": site.url}).prepare() == "answered 200"


@pytest.mark.parametrize(
    ("url", "exceptions", "asked"),
    [
        ("http://example.org/", "", True),
        ("http://example.org/", "other.org, 10.0.0.0/8", True),
        ("http://example.org/", "*", False),
        ("http://example.org/", "EXAMPLE.org", False),
        ("http://www.example.org/", "example.org", False),
        ("http://www.example.org/", ".example.org", False),
        ("http://www.example.org/", "*.example.org", False),
        ("http://notexample.org/", "example.org", True),
        ("http://example.org:8080/", "example.org:8080", False),
        ("http://example.org/", "example.org:8080", True),
        ("http://10.1.2.3/", "10.0.0.0/8", False),
        ("http://10.1.2.3/", "10.1.2.3", False),
        ("http://11.1.2.3/", "10.0.0.0/8", True),
        ("http://[2001:db8::1]/", "2001:db8::/32", False),
        ("http://[2001:db8::1]:81/", "[2001:db8::1]:81", False),
        ("http://[2001:db8::1]/", "[2001:db8::1]:81", True),
        ("http://169.254.169.254/metadata", "", False),
        ("http://[::ffff:169.254.169.254]/metadata", "", False),
        ("http://[fe80::1]/", "", False),
        ("http://localhost:8170/", "", False),
        ("http://127.9.9.9/", "", False),
        ("http://[::1]/", "", False),
    ],
)
def test_the_metadata_service_and_exceptions_are_asked_directly(
    url: str, exceptions: str, asked: bool
) -> None:
    environment = {"http_proxy": "10.0.0.5:3128", "NO_PROXY": exceptions}
    assert (proxies.chosen(url, environment) is not None) is asked


def test_small_letters_and_the_urls_own_scheme_win() -> None:
    environment = {"HTTPS_PROXY": "http://a", "https_proxy": "http://b:81", "all_proxy": "http://c"}
    chosen = [proxies.chosen(f"{scheme}://x.org/", environment) for scheme in ("https", "http")]
    assert [str(proxy.endpoint) for proxy in chosen if proxy] == ["http://b:81", "http://c"]
