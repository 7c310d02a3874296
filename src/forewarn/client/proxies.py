"""The HTTP proxy that the environment names for a URL: for chats and webhooks on the Internet.

`http_proxy`, `https_proxy`, `all_proxy` and `no_proxy`, in small letters or else in capitals, as
curl and Go read them. The metadata service is asked without this module. A URL of this machine or
of a link-local address never goes through a proxy: an answer in the metadata service's place would
be another's.
"""

import base64
import contextlib
import ipaddress
import socket
import urllib.parse
from collections.abc import Mapping
from typing import NamedTuple

from forewarn import clock
from forewarn.client import discovery
from forewarn.client.discovery import EndpointAddress

ANSWER_BYTES = 16 * 1024
"""The longest head of a proxy's answer that is read."""


class BadProxy(ValueError):  # noqa: N818 - beside BadAddress
    """A variable does not name an HTTP proxy."""


class Proxy(NamedTuple):
    """An HTTP proxy."""

    endpoint: EndpointAddress
    authorization: bytes
    """The header line that authenticates to the proxy, with its end; empty without a password."""

    def forwarded(self, sent: bytes, server: EndpointAddress) -> bytes:
        """Return a request for a server as this proxy takes it (RFC 9112, section 3.2.2)."""
        first, _, rest = sent.partition(b"\r\n")
        method, target, version = first.split(b" ")
        line = b" ".join((method, f"http://{server.authority}".encode() + target, version))
        return line + b"\r\n" + self.authorization + rest

    def open_tunnel(self, connected: socket.socket, server: EndpointAddress, until: float) -> None:
        """Ask the proxy for a connection to a server; an OSError gives the reason of a refusal."""
        host = f"{server.authority.removesuffix(f':{server.port}')}:{server.port}"
        asked = f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n".encode() + self.authorization
        connected.sendall(asked + b"\r\n")
        answer = b""
        while b"\r\n\r\n" not in answer:
            connected.settimeout(max(0.001, until - clock.monotonic()))
            piece = connected.recv(4096)
            answer += piece
            if not piece or len(answer) > ANSWER_BYTES:
                raise OSError(f"the proxy {self.endpoint} opens no tunnel to {host}")
        status = answer.split(b"\r\n")[0].decode("ascii", "replace")
        if status.split(" ")[1:2] != ["200"]:
            raise OSError(f"the proxy {self.endpoint} opens no tunnel to {host}: {status[:100]}")


def chosen(url: str, environment: Mapping[str, str]) -> Proxy | None:
    """Return the proxy for a URL; None if it is asked directly."""
    parts = urllib.parse.urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or (443 if parts.scheme == "https" else 80)

    def value(name: str) -> str:
        return environment.get(name) or environment.get(name.upper()) or ""

    named = value(f"{parts.scheme}_proxy") or value("all_proxy")
    if not named or _is_near(host) or _is_excepted(host, port, value("no_proxy")):
        return None
    try:
        proxy = urllib.parse.urlsplit(named if "://" in named else f"http://{named}")
        place = EndpointAddress(discovery.host_of(proxy.hostname), proxy.port or 80)
    except ValueError as error:
        raise BadProxy(f"invalid proxy for {parts.scheme}: {error}") from error
    if proxy.scheme != "http" or not place.host:
        expected = "expected an address such as http://10.0.0.5:3128"
        raise BadProxy(f"invalid proxy for {parts.scheme} in the environment: {expected}")
    authorization = b""
    if proxy.username is not None:
        given = ":".join((proxy.username, proxy.password or ""))  # in any encoding
        user = urllib.parse.unquote_to_bytes(given.encode(errors="surrogateescape"))
        authorization = b"Proxy-Authorization: Basic " + base64.b64encode(user) + b"\r\n"
    return Proxy(place, authorization)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_near(host: str) -> bool:
    address = _address(host)
    if address is None:
        return host == "localhost"
    mapped = getattr(address, "ipv4_mapped", None) or address
    return bool(mapped.is_loopback or mapped.is_link_local)


def _is_excepted(host: str, port: int, exceptions: str) -> bool:
    """Return True if a list has a host: `*`, a domain, an address, a network, each with a port."""
    address = _address(host)
    for each in filter(None, (part.strip().lower() for part in exceptions.split(","))):
        name, _, its_port = each.rpartition(":")
        if not name or (":" in name and not name.endswith("]")):  # no port
            name, its_port = each, ""
        name = name.strip("[]")
        if its_port and its_port != str(port):
            continue
        if name in {"*", host}:
            return True
        if address is None:
            if f".{host}".endswith(f".{name.removeprefix('*').lstrip('.')}"):
                return True
        else:
            with contextlib.suppress(ValueError):  # a domain
                if address in ipaddress.ip_network(name, strict=False):
                    return True
    return False
