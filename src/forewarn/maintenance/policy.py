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
    """The settings that rules look at."""

    enablement: Enablement = Enablement.ALWAYS
    disable_after: timedelta = timedelta(hours=24)
    """With FIRST_REQUEST: how long a scope stays on without being asked for."""
    user_initiated_limit: int = 0
    """The most events that users' own maintenance may have pending; 0 is no limit."""

    def is_on(self, scope: Scope, now: datetime) -> bool:
        """Tell whether the scope's guests are told of what is announced now."""
        if self.enablement is Enablement.ALWAYS:
            return True
        return scope.asked_at is not None and now - scope.asked_at < self.disable_after
