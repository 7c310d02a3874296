"""The addresses of the metadata endpoint, in the order in which to try them.

An address that was given, or FOREWARN_ENDPOINT, is the only one. Without either, the link-local
address comes first, then SCHEDULEDEVENTSIP, which Microsoft's own discovery script sets, then
option 245 of the machine's DHCP leases, as on machines of the classic cloud outside virtual
networks. The DHCP server itself is never asked: that takes root and a raw socket.
"""

import glob
import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, Literal, TypeAlias

import msgspec

LINK_LOCAL: Final = "169.254.169.254"
"""The address of the endpoint on every machine in a virtual network (protocol.md section 1)."""

ENDPOINT_VARIABLE: Final = "FOREWARN_ENDPOINT"
ADDRESS_VARIABLE: Final = "SCHEDULEDEVENTSIP"
PORT: Final = 80

MAX_ADDRESS: Final = 2048
"""The most characters of an address: more than any URL that people type."""

MAX_LEASE_BYTES: Final = 1024 * 1024
"""The most bytes that are read of a lease file, from its end: months of renewals by dhclient."""

MAX_LEASE_FILES: Final = 64
"""The most lease files that are read: one for each network card and DHCP client."""

DHCLIENT: Final = (
    "/var/lib/dhcp/dhclient*.leases",
    "/var/lib/dhcp3/dhclient*.leases",
    "/var/lib/dhclient/dhclient*.lease*",
    "/var/lib/NetworkManager/dhclient*.lease",
    "/var/db/dhclient.leases*",
)
"""The files of dhclient's leases on Debian, SUSE, Red Hat, under NetworkManager and on BSD."""

NETWORKD: Final = ("/run/systemd/netif/leases/*",)
"""The files of systemd-networkd's current leases."""

Format: TypeAlias = Literal["dhclient", "networkd"]
LeaseFile: TypeAlias = tuple[Format, str]
"""A file of DHCP leases: its format and its text."""


class BadAddress(ValueError):  # noqa: N818 - the caller's mistake, and no fault of ours
    """An invalid address; the message says what is wrong, and what is expected."""


class EndpointAddress(msgspec.Struct, frozen=True):
    """A server of the protocol."""

    host: str
    """A name or an IP address, an IPv6 one without its brackets."""
    port: int = PORT
    prefix: str = ""
    """The path before `/metadata/...`, such as `/vm/web-0`; `""` for none."""
    scheme: str = "http"

    def __str__(self) -> str:
        """Return it as a URL, without the port if it is HTTP's own."""
        return f"{self.scheme}://{self._at(self.host.replace('%', '%25'))}{self.prefix}"

    @property
    def authority(self) -> str:
        """The host and its port as in a Host header, without the interface of a link-local one."""
        return self._at(self.host.partition("%")[0])

    def _at(self, host: str) -> str:
        host = f"[{host}]" if ":" in host else host
        return host if self.port == PORT else f"{host}:{self.port}"


def find(
    given: str | None,
    environment: Mapping[str, str],
    now: datetime,
    read: Callable[[], Iterable[LeaseFile]] | None = None,
) -> tuple[EndpointAddress, ...]:
    """Return the possible addresses of the endpoint, in the order in which to try.

    `read` gives the lease files where no address is given; None for `lease_files`. An invalid
    address, given or in a variable, is a BadAddress.
    """
    if given is not None:
        return (parse(given),)
    if named := environment.get(ENDPOINT_VARIABLE):
        return (_variable(ENDPOINT_VARIABLE, named),)
    found = {EndpointAddress(LINK_LOCAL): True}  # a dict keeps the order, and each only once
    if named := environment.get(ADDRESS_VARIABLE):
        found[_variable(ADDRESS_VARIABLE, named)] = True
    leased = ""
    for form, text in (read or lease_files)():
        option = _dhclient(text, now) if form == "dhclient" else _networkd(text)
        leased = option or leased  # the file that was written last counts
    if leased:
        found[EndpointAddress(leased)] = True
    return tuple(found)


def parse(address: str) -> EndpointAddress:
    """Read an address: `169.254.169.254`, `host:8170`, `http://127.0.0.1:8170/vm/web-0`."""
    import ipaddress  # noqa: PLC0415 - most machines use the link-local address, and start sooner
    import urllib.parse  # noqa: PLC0415 - as above

    if not re.fullmatch(_URL_CHARACTERS, address) or len(address) > MAX_ADDRESS:
        raise _bad(address, "it is empty, or has characters that no URL has, or too many")
    scheme, separator, rest = address.partition("://")
    if separator and scheme.lower() != "http":
        raise _bad(address, "the protocol is plain HTTP")
    try:
        parts = urllib.parse.urlsplit("//" + (rest if separator else address))
        host, port = host_of(parts.hostname), parts.port
        bracketed = parts.netloc.startswith("[")
        if bracketed or re.fullmatch(r"[0-9.]+", host):
            ipaddress.ip_address(host)
    except ValueError as error:
        raise _bad(address, str(error)) from error
    path = parts.path.rstrip("/")
    if "@" in parts.netloc or "?" in address or "#" in address or parts.netloc.endswith(":"):
        raise _bad(address, "only a host, a port and a path count")
    if not bracketed and not re.fullmatch(_NAME, host):
        raise _bad(address, "the host name is invalid")
    if port == 0:
        raise _bad(address, "the port must be 1 to 65535")
    if "/metadata/" in f"{path.lower()}/":
        raise _bad(address, "leave out the path from /metadata on")
    return EndpointAddress(host, PORT if port is None else port, path)


def host_of(name: str | None) -> str:
    """Return a URL's host as the system takes it, which knows no `%25` (RFC 6874, section 2)."""
    return re.sub("%25(?=.)", "%", name or "")


# A text and no compiled pattern: re compiles it at its first use, and importing this costs nothing.
_URL_CHARACTERS: Final = r"[A-Za-z0-9/._~!$&'()*+,;=:@%\[\]?#-]+"
_NAME: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?\.?"


def _bad(address: str, wrong: str) -> BadAddress:
    shown = address if len(address) <= 80 else f"{address[:80]}..."
    return BadAddress(f"invalid address {shown!r}: {wrong}; expected http://HOST[:PORT][/PATH]")


def _variable(name: str, address: str) -> EndpointAddress:
    try:
        return parse(address)
    except BadAddress as error:
        raise BadAddress(f"the variable {name}: {error}") from error


_LEXEME: Final = (
    r'"(?P<text>(?:[^"\\]|\\.){0,2048}+)"'  # an option has 255 bytes, of four characters each
    r'|(?P<comment>#[^\n]*)|(?P<mark>[{};])|(?P<word>[^\s{};"#]+)'
)


def _dhclient(text: str, now: datetime) -> str | None:
    # The file is a log: its last lease is the newest. A lease that is not whole does not count, nor
    # does one without an expiry.
    found = address = None
    inside = live = False
    words: list[str] = []
    for token in re.finditer(_LEXEME, text, re.DOTALL):
        if token["comment"] is not None:
            continue
        if token["mark"] is None:
            words.append(token["word"] or f'"{token["text"]}')  # a quoted text keeps one `"`
            continue
        statement, words = words, []
        match statement, token["mark"]:
            case ["lease"], "{":
                inside, live, address = True, False, None
            case ["option", "unknown-245" | "option-245", value], ";":
                address = _option(value)
            case ["expire", *when], ";":
                live = _is_ahead(when, now)
            case _, "}":
                found = address if inside and live and address else found
                inside = False
    return found


def _option(value: str) -> str | None:
    # dhclient writes one or two hex digits a byte, `a8:3f:81:10`, or, where every byte happens to
    # be printable, the four as quoted text, in which a backslash quotes a character or begins three
    # octal digits.
    if value.startswith('"'):
        read = re.findall(r"\\([0-7]{3})|\\?(.)", value[1:], re.DOTALL)
        return _address([int(octal, 8) if octal else ord(sign) for octal, sign in read])
    pairs = value.split(":")
    if not all(re.fullmatch(r"[0-9A-Fa-f]{1,2}", pair) for pair in pairs):
        return None
    return _address([int(pair, 16) for pair in pairs])


def _address(octets: Sequence[int]) -> str | None:
    if len(octets) != 4 or not 0 < octets[0] < 224 or max(octets) > 255:
        return None
    return ".".join(map(str, octets))


def _is_ahead(when: Sequence[str], now: datetime) -> bool:
    """Return True if an expiry is in the future: `6 2017/11/25 01:48:29`, `epoch 1511574509`."""
    match when:
        case ["never"]:
            return True
        case ["epoch", seconds] if re.fullmatch(r"[0-9]{1,12}", seconds):
            return int(seconds) > now.timestamp()
        case [_, date, time] | [_, date, time, "UTC"]:
            try:
                ends = datetime.strptime(f"{date} {time}+0000", "%Y/%m/%d %H:%M:%S%z")
            except ValueError:
                return False
            return ends > now
    return False


def _networkd(text: str) -> str | None:
    # It removes the file together with the lease, so what is there has not expired.
    match = re.search(r"^OPTION_245=([0-9A-Fa-f]{8})\s*$", text, re.MULTILINE)
    return None if match is None else _address(list(bytes.fromhex(match[1])))


def lease_files(
    dhclient: Sequence[str] = DHCLIENT, networkd: Sequence[str] = NETWORKD
) -> tuple[LeaseFile, ...]:
    """Read the machine's lease files, the newest last; leave out unreadable ones."""
    found: list[tuple[float, str, LeaseFile]] = []
    formats: dict[Format, Sequence[str]] = {"dhclient": dhclient, "networkd": networkd}
    paths = (
        (path, form)
        for form, patterns in formats.items()
        for pattern in patterns
        for path in sorted(glob.glob(pattern))  # noqa: PTH207 - pathlib costs a third of the import
    )
    for path, form in itertools.islice(paths, MAX_LEASE_FILES):
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - as above
                status = os.fstat(file.fileno())
                file.seek(max(0, status.st_size - MAX_LEASE_BYTES))
                text = file.read(MAX_LEASE_BYTES).decode("ascii", "replace")
        except OSError:
            continue
        found.append((status.st_mtime, path, (form, text)))
    return tuple(file for _, _, file in sorted(found))
