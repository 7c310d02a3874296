"""Parses a request's target: which resource, of which machine, with which parameters.

Any bytes may come. A target that leads nowhere is None, and the answer is 404.
"""

from enum import Enum, auto
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec

from forewarn.protocol import text


class Resource(Enum):
    """What the endpoint serves (protocol.md section 1)."""

    EVENTS = auto()
    INSTANCE = auto()
    VERSIONS = auto()


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A target that leads to a resource."""

    resource: Resource
    below: tuple[str, ...] = ()
    """The path's segments below the resource, as written; only the instance tree has any."""
    machine: str | None = None
    """The name in a `/vm/NAME` prefix, as written; None without one."""
    api_version: str | None = None
    """None where it is missing, or where the path says `latest`."""
    format: str | None = None
    doubled: str | None = None
    """The first parameter that is given twice; None where none is."""


MAX_REMEMBERED: Final = 1024
"""Parsed targets that are kept: guests ask for the same few each second."""

MAX_REMEMBERED_BYTES: Final = 256
"""Longer targets are not kept, so that strangers cannot fill the memory with them."""

_VM_PREFIX: Final = "vm"


def read(target: bytes) -> Target | None:
    """Return what a target asks for, None if it leads nowhere.

    Each segment is percent-decoded by itself, so an encoded slash never separates segments.
    """
    if len(target) <= MAX_REMEMBERED_BYTES:
        return _remembered(target)
    return _read(target)


def _read(target: bytes) -> Target | None:
    path, _, query = target.partition(b"?")
    steps = _steps(_without_authority(path))
    machine = None
    if len(steps) > 2 and text.lower(steps[0]) == _VM_PREFIX and steps[1]:
        machine, steps = steps[1], steps[2:]
    if not steps or text.lower(steps[0]) != "metadata":
        return None
    parameters, doubled = _parameters(query)
    api_version = parameters.get("api-version")
    below: tuple[str, ...] = ()
    match [text.lower(step) for step in steps[1:]]:
        case ["scheduledevents"]:
            resource = Resource.EVENTS
        case ["latest", "scheduledevents"]:
            resource, api_version = Resource.EVENTS, None
        case ["versions"]:
            resource = Resource.VERSIONS
        case ["instance", *_]:
            resource, below = Resource.INSTANCE, steps[2:]
        case _:
            return None
    return Target(
        resource=resource,
        below=below,
        machine=machine,
        api_version=api_version,
        format=parameters.get("format"),
        doubled=doubled,
    )


_remembered = lru_cache(maxsize=MAX_REMEMBERED)(_read)


def _without_authority(path: bytes) -> bytes:
    """Return the path, also of a whole URL, which a server must accept (RFC 9112, 3.2.2)."""
    scheme, separator, rest = path.partition(b"://")
    if separator and scheme.lower() == b"http":
        _, slash, path = rest.partition(b"/")
        return slash + path
    return path


def _steps(path: bytes) -> tuple[str, ...]:
    if not path.startswith(b"/"):
        return ()
    return tuple(_decoded(step) for step in path.removesuffix(b"/").split(b"/")[1:])


def _parameters(query: bytes) -> tuple[dict[str, str], str | None]:
    """Return the first value of each parameter, and the first parameter that is given twice."""
    parameters: dict[str, str] = {}
    doubled = None
    for piece in query.split(b"&"):
        if piece:
            raw_name, _, raw_value = piece.replace(b"+", b" ").partition(b"=")
            name = text.lower(_decoded(raw_name))  # in any case [O]
            if name not in parameters:
                parameters[name] = _decoded(raw_value)
            elif doubled is None:
                doubled = name
    return parameters, doubled


def _decoded(value: bytes) -> str:
    """Percent-decode a value; invalid UTF-8 becomes a character that matches nothing."""
    return (unquote_to_bytes(value) if b"%" in value else value).decode("utf-8", "replace")
