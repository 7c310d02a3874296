"""An endpoint's address: what a caller writes, and what a connection needs of it."""

from typing import Final

import msgspec

from forewarn.client.errors import Misuse

LINK_LOCAL: Final = "http://169.254.169.254"
"""Where the original serves its guests, and Forewarn by default (protocol.md section 1)."""

_SCHEME: Final = "http://"
_MAX_PORT: Final = 65_535
_MAX_LENGTH: Final = 2048


class Address(msgspec.Struct, frozen=True):
    """Where the endpoint is."""

    host: str
    """A name or an IP address, without brackets."""
    port: int
    path: str
    """What stands before `/metadata`, such as `/vm/web-0`; `""` for nothing."""

    @property
    def authority(self) -> str:
        """What a request's Host says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == 80 else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The address as a caller would write it."""
        return f"{_SCHEME}{self.authority}{self.path}"


def parse(url: str) -> Address:
    """Read an address such as `http://169.254.169.254` or `http://127.0.0.1:8080/vm/web-0`.

    A bare host or IP address, with or without a port, is taken too. What stands from `/metadata` on
    is left away, so that the whole URL of the events may be given.

    Raises:
        Misuse: It is no such address, or one of https: the protocol is plain HTTP.
    """
    rest = url.strip()
    scheme, separator, after = rest.partition("://")
    if separator:
        if scheme.lower() != "http":
            raise _wrong(url, "the protocol is plain http")
        rest = after
    printable = rest.isascii() and rest.isprintable() and not set(rest) & set(' "<>\\^`{|}@#')
    if not rest or len(rest) > _MAX_LENGTH or not printable:
        raise _wrong(url, "a host is missing, or it has signs that no address has")
    authority, slash, path = rest.partition("?")[0].partition("/")
    host, port = _host_and_port(url, authority)
    return Address(host, port, _before_metadata(slash + path))


def _host_and_port(url: str, authority: str) -> tuple[str, int]:
    if authority.startswith("["):
        host, bracket, rest = authority[1:].partition("]")
        if not bracket or ":" not in host or (rest and not rest.startswith(":")):
            raise _wrong(url, "an IPv6 address stands in brackets, a port behind them")
        port = rest[1:]
    else:
        host, _, port = authority.partition(":")
    if not host or (port and not (port.isdecimal() and 0 < int(port[:6]) <= _MAX_PORT)):
        raise _wrong(url, f"a host is missing, or the port is not 1 to {_MAX_PORT}")
    return host, int(port) if port else 80


def _before_metadata(path: str) -> str:
    steps = path.rstrip("/").split("/")
    for number, step in enumerate(steps):
        if step.lower() == "metadata":
            steps = steps[:number]
            break
    return "/".join(steps)


def _wrong(url: str, why: str) -> Misuse:
    return Misuse(f"{url!r} is no endpoint's address ({why}): give one such as {LINK_LOCAL}")
