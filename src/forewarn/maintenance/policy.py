"""What the settings decide about the rules (protocol.md section 8)."""

from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from forewarn.maintenance.model import Scope


class Enablement(StrEnum):
    """When a scope has events at all."""

    ALWAYS = "always"
    FIRST_REQUEST = "first-request"
    """Off until one of its machines asks, and off again when none has asked for long."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What rules look at beside the snapshot: the settings, and whether anything may start."""

    enablement: Enablement = Enablement.ALWAYS
    disable_after: timedelta = timedelta(hours=24)
    """With FIRST_REQUEST: how long a scope stays on without being asked for."""
    user_initiated_limit: int = 0
    """The most events that users' own maintenance may have pending; 0 is no limit."""
    starts: bool = True
    """Whether anything may start now; not while the time of day is doubted, or guests cannot read.
    What gets ready meanwhile is due as soon as it may. A failure without notice has happened, and
    enters all the same."""

    def is_on(self, scope: Scope, now: datetime) -> bool:
        """Tell whether the scope's guests are told of what is announced now."""
        if self.enablement is Enablement.ALWAYS:
            return True
        return scope.asked_at is not None and now - scope.asked_at < self.disable_after
