"""The service itself as values: its time, whether it is alive, whether it does all its work."""

from datetime import datetime
from typing import Literal

from forewarn.server.operator import schemas


class Time(schemas.Value, frozen=True, kw_only=True):
    """The service's own time, which may be scaled."""

    now: datetime
    scale: float
    """Its seconds in one real second; 1 but for demonstrations."""
    doubt: str = ""
    """Why the time of day is not trusted, and so nothing starts; `""` when it is."""


class ClockRequest(schemas.Asked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operator's word on the machine's clock."""

    trust: Literal[True]
    """That it is right as it is."""
    by: schemas.ShortText = ""
    """The operator's name, for the log."""


class Health(schemas.Value, frozen=True, kw_only=True):
    """The process is alive."""

    status: str
    version: str


class Readiness(schemas.Value, frozen=True, kw_only=True):
    """Whether the service does all its work; the reasons if not."""

    ready: bool
    reasons: tuple[str, ...] = ()
    """What is missing, for people; empty when ready."""
