"""What the service does in a transaction because of relays: their tokens, and holds of their hosts.

`Plane.order` runs each function as one of the writer's jobs. What a replica saw may be over by
then, so an order looks again at what the store has.
"""

from datetime import datetime, timedelta

import msgspec

from forewarn.control import loading
from forewarn.control.unit_of_work import Decide, UnitOfWork, Work
from forewarn.maintenance import decide, notice, relays
from forewarn.maintenance.model import Changes, Hold, HoldKind, Refused
from forewarn.maintenance.relays import Relay, RelayToken
from forewarn.maintenance.transitions import Transitions
from forewarn.vocabulary import ErrorCode


def create_token(unit: UnitOfWork, _: Decide, token: RelayToken) -> Work[RelayToken]:
    """Give a host's relay a new token, beside the one that it uses."""
    made = msgspec.structs.replace(token, created_at=unit.now)
    void = relays.issue(unit.store.relay_tokens([made.host]).values(), made)
    return Work(made, Changes(relay_tokens=(made,), void_relay_tokens=void))


def use_token(unit: UnitOfWork, _: Decide, token: RelayToken) -> Work[None]:
    """Note that a token was used first: the one that it replaces is void."""
    known = unit.store.relay_tokens([token.host])
    stored = known.get(token.digest)
    if stored is None or stored.used_at is not None:
        return Work(None)
    used = msgspec.structs.replace(stored, used_at=unit.now)
    void = relays.use(known.values(), used)
    return Work(None, Changes(relay_tokens=(used,), void_relay_tokens=void))


def show_certificate(unit: UnitOfWork, _: Decide, shown: RelayToken) -> Work[None]:
    """Note that a host's relay has shown a certificate, as `relays.by_certificate` says it."""
    known = unit.store.relay_tokens([shown.host]).get(shown.digest)
    if known is not None and known.created_at >= shown.created_at:
        return Work(None)
    return Work(None, Changes(relay_tokens=(shown,)))


def revoke_tokens(unit: UnitOfWork, decided: Decide, host: str) -> Work[int]:
    """Revoke all tokens of a host's relay; a hold for its absence goes, too.

    A certificate is forgotten: if it is still valid, its next use notes it again. The answer is how
    many there were.
    """
    void = tuple(unit.store.relay_tokens([host]))
    if not void:
        message = f"the relay of host {host!r} has no token: see 'forewarn host list'"
        raise Refused(ErrorCode.NOT_FOUND, message, what="host", name=host)
    unit.store.forget_relay(host)
    changes = _released(unit, decided, host)
    return Work(len(void), msgspec.structs.replace(changes, void_relay_tokens=void))


def hold(unit: UnitOfWork, decided: Decide, relay: Relay, since: datetime) -> Work[Relay]:
    """Hold the host of a relay that is away, once for each absence.

    The answer is the relay as the store has it then: heard again, or held for its absence.
    """
    known = unit.store.relays([relay.host]).get(relay.host)
    if known is None or known.heard_at != relay.heard_at or known.held_for == relay.heard_at:
        return Work(known or relay)
    other = _host_hold(unit, relay.host)
    if other is not None and other.by != relays.BY:
        return Work(relay)  # an operator holds it: once that is released, this holds it
    unit.store.mark_relay(relay.host, relay.heard_at)
    changes = Changes()
    if other is None:
        new = _new_hold(relay.host, since, unit.now)
        snapshot = loading.for_host_hold(unit, new)
        changes = decided(unit, snapshot, decide.place_hold, new).changes
    return Work(msgspec.structs.replace(known, held_for=relay.heard_at), changes)


def release(unit: UnitOfWork, decided: Decide, host: str) -> Work[None]:
    """Release the host of a relay that is back, unless an operator did."""
    unit.store.mark_relay(host, None)
    return Work(None, _released(unit, decided, host))


def record_stall(unit: UnitOfWork, decided: Decide, host: str, length: timedelta) -> Work[int]:
    """Move the notices of a host later: its guests got no answer for so long, until now.

    The answer is how many operations that concerned.
    """
    if _host_hold(unit, host) is not None:
        return Work(0)  # nothing starts, and NotBefore moves on already
    new = _new_hold(host, unit.now - length, unit.now)

    def pause(working: Transitions) -> list[str]:
        held = decide.place_hold(working, new)
        decide.release_hold(working, new)
        return held

    decision = decided(unit, loading.for_host_hold(unit, new), pause)
    return Work(len(decision.operations), decision.changes)


def _released(unit: UnitOfWork, decided: Decide, host: str) -> Changes:
    held = _host_hold(unit, host)
    if held is None or held.by != relays.BY:
        return Changes()
    return decided(unit, loading.for_host_hold(unit, held), decide.release_hold, held).changes


def _host_hold(unit: UnitOfWork, host: str) -> Hold | None:
    found = (hold for hold in unit.holds() if hold.kind is HoldKind.HOST and hold.name == host)
    return next(found, None)


def _new_hold(host: str, since: datetime, now: datetime) -> Hold:
    reason = f"its relay did not ask since {notice.spoken(since)}"
    return Hold(kind=HoldKind.HOST, name=host, reason=reason, by=relays.BY, at=min(since, now))
