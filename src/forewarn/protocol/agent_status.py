"""Reads and writes the header that says how a machine fares (protocol.md section 10).

    Forewarn-Agent: preparing
    Forewarn-Agent: held; reason="the drain of web-0 failed"

Whatever else it holds is ignored: a guest's mistake must not cost it its document.
"""

import re
from functools import lru_cache
from typing import Final

import msgspec

from forewarn.vocabulary import AgentStatus

HEADER: Final = b"forewarn-agent"
"""Its name in lower case."""

MAX_REASON: Final = 200
"""The most bytes of a reason, in UTF-8; more makes the header malformed."""

_MAX_VALUE: Final = 512
"""The longest value that is read: a reason whose every byte is escaped, and the state."""

_KNOWN: Final = 1024
"""Values that are remembered: agents repeat theirs with each poll."""

_VALUE: Final = re.compile(
    rb'([a-z]++)[ \t]*+(?:;[ \t]*+[Rr][Ee][Aa][Ss][Oo][Nn]="((?:[^"\\]|\\.)*+)"[ \t]*+)?+',
    re.DOTALL,
)


class AgentReport(msgspec.Struct, frozen=True, gc=False):
    """What an agent said last."""

    status: AgentStatus
    reason: str = ""
    """Why, in one line for operators; `""` where it gave none."""


@lru_cache(maxsize=_KNOWN)
def parse(value: bytes) -> AgentReport | None:
    """Return what a header's value says; None where it is malformed."""
    found = _VALUE.fullmatch(value.strip(b" \t")) if len(value) <= _MAX_VALUE else None
    if found is None:
        return None
    reason = re.sub(rb"\\(.)", rb"\1", found[2] or b"", flags=re.DOTALL)
    try:
        status = AgentStatus(found[1].decode())
        text = reason.decode()
    except ValueError:
        return None
    if len(reason) > MAX_REASON or not text.isprintable():
        return None
    return AgentReport(status, text)


def write(report: AgentReport) -> str:
    """Return the header's value; a reason that is too long is cut, and kept to one line."""
    line = "".join(c if c.isprintable() else " " for c in report.reason)
    cut = line.encode()[:MAX_REASON].decode(errors="ignore")
    if not cut:
        return report.status.value
    quoted = cut.replace("\\", r"\\").replace('"', r"\"")
    return f'{report.status.value}; reason="{quoted}"'
