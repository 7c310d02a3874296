"""The enums that every room shares, in the protocol's own words.

Every room may import this module; it imports nothing of the package.
"""

from enum import StrEnum
from typing import Final

RESOURCE_TYPE: Final = "VirtualMachine"
"""The one resource type that the protocol knows (protocol.md section 2)."""


class EventType(StrEnum):
    """The kinds of maintenance of a machine (protocol.md section 6)."""

    FREEZE = "Freeze"
    """Paused for seconds; memory and open files stay."""
    REBOOT = "Reboot"
    """Restarted; memory is lost."""
    REDEPLOY = "Redeploy"
    """Moved to another host; memory and ephemeral disks are lost."""
    PREEMPT = "Preempt"
    """A low-priority machine is deleted."""
    TERMINATE = "Terminate"
    """A machine of a scale set is deleted."""


class EventStatus(StrEnum):
    """The status of an operation, and so of each of its events (protocol.md section 6)."""

    QUEUED = "Queued"
    """Not announced: another update domain of one of its scopes is down, or announced to go down.
    """
    SCHEDULED = "Scheduled"
    STARTED = "Started"
    RETURNING = "Returning"
    """Carried out, and not all of its machines have asked again; guests read Started."""
    COMPLETED = "Completed"
    FAILED = "Failed"
    CANCELED = "Canceled"

    @property
    def visible(self) -> bool:
        """True if guests see an event of this status, as Scheduled or Started."""
        return self in _VISIBLE

    @property
    def over(self) -> bool:
        """True if nothing can follow this status."""
        return self in _OVER


_VISIBLE: Final = frozenset({EventStatus.SCHEDULED, EventStatus.STARTED, EventStatus.RETURNING})
_OVER: Final = frozenset({EventStatus.COMPLETED, EventStatus.FAILED, EventStatus.CANCELED})


class TargetKind(StrEnum):
    """The kinds of targets that an operator can name."""

    MACHINES = "machines"
    SCOPE = "scope"
    HOST = "host"
    MIXED = "mixed"
    """For a maintenance alone: units of several of these."""


class EventSource(StrEnum):
    """The party that asked for the event (protocol.md section 4)."""

    PLATFORM = "Platform"
    USER = "User"


class ScopeKind(StrEnum):
    """The reason why machines share one document (protocol.md section 7)."""

    MACHINE = "machine"
    """A standalone machine."""
    CLOUD_SERVICE = "cloud_service"
    AVAILABILITY_SET = "availability_set"
    SCALE_SET = "scale_set"


class Priority(StrEnum):
    """The priority of a machine's capacity: only a low-priority one can be preempted."""

    REGULAR = "regular"
    LOW = "low"


class ApproverKind(StrEnum):
    """The party that approved an event (protocol.md sections 5 and 6)."""

    GUEST = "guest"
    """A machine of the event's scope, at the metadata endpoint."""
    OPERATOR = "operator"
    """An operator, on the guests' behalf."""
    AUTOMATIC = "automatic"
    """The scope's own setting, for a user's Reboot or Redeploy."""


class AgentStatus(StrEnum):
    """The state of an agent's work on its machine's events (protocol.md section 10)."""

    PREPARING = "preparing"
    """It drains, or checkpoints, before it approves."""
    READY = "ready"
    """It has prepared and approved."""
    HELD = "held"
    """It could not prepare and does not approve."""
    RECOVERING = "recovering"
    """The event is over, and it undoes its preparations."""
    BACK = "back"
    """The machine works as usual."""


class AccessRole(StrEnum):
    """The rights of an operator's account; each role includes those of the ones before it."""

    RELAY = "relay"
    """Be the relay of a host, and nothing else."""
    METRICS = "metrics"
    """Read the metrics, and nothing else."""
    VIEWER = "viewer"
    """Read everything but the accounts and the audit log, and plan by dry runs."""
    OPERATOR = "operator"
    """Change the fleet and maintenance, and read the audit log."""
    ADMIN = "admin"
    """Manage operators' tokens, relays' tokens and webhooks."""

    def allows(self, needed: "AccessRole") -> bool:
        """Return True if this role may do everything that another may."""
        order = list(AccessRole)
        return order.index(self) >= order.index(needed)


class TokenAudience(StrEnum):
    """The part of the service that accepts a token."""

    API = "api"
    """Programs, which send it as a bearer token."""
    PAGE = "page"
    """A browser, which sends it in a cookie."""
    RELAY = "relay"
    """The relay of a host, at `relay.listen`."""


class ErrorCode(StrEnum):
    """The reason of a refusal: a metric label, an HTTP body's `code`, an exit status."""

    INVALID = "invalid"
    """The input is not as expected."""
    NOT_FOUND = "not-found"
    """The input names something that does not exist."""
    CONFLICT = "conflict"
    """Something live is in the way; the message names it."""
    NOTICE_TOO_SHORT = "notice-too-short"
    """The guests would have less than the least notice."""
    NOT_ELIGIBLE = "not-eligible"
    """This kind of maintenance does not apply to that machine."""
    TOO_LATE = "too-late"
    """It has started, or is over."""
    LIMIT = "limit"
    """More than Forewarn accepts at once."""
    STALE = "stale"
    """Another executor has taken the operation over since."""
    UNAUTHORIZED = "unauthorized"
    """The request to the operator plane lacks a valid token, or its Host is not accepted."""
    FORBIDDEN = "forbidden"
    """The account's role does not allow the request."""
    UNAVAILABLE = "unavailable"
    """The store is unavailable; nothing was changed."""
    UNKNOWN_OUTCOME = "unknown-outcome"
    """The database did not confirm the change: look, and ask again."""
    INTERNAL = "internal"
    """Forewarn's own fault; the log has the details."""
