"""Which relays an operator is told of."""

import msgspec

from builders import MINUTE, NOW
from control.test_relay_watch import RelayReplica
from forewarn.clock import ManualClock
from forewarn.control.relay_watch import SETTLE
from forewarn.control.service_clock import ServiceClock
from forewarn.maintenance.alerts import AlertKind
from forewarn.maintenance.model import Changes, Drain, HostState
from forewarn.server import settings
from forewarn.server.operator.connections import ReachedLimits
from forewarn.server.relay.application import RelayPlane
from forewarn.server.relay_feed import GuestRules
from forewarn.server.sockets import HandedOver
from forewarn.store.sqlite import InMemoryStore


def test_a_relay_that_is_away_is_told_of_unless_its_host_reboots() -> None:
    clock, store = ManualClock(NOW), InMemoryStore()
    replica = RelayReplica(store, clock)
    for host in ("h0", "h1", "h2"):
        replica.token(f"token of {host}", host)
    plane = RelayPlane(
        settings=settings.RelaySettings(listen="127.0.0.1:0"),
        plane=replica.plane,
        store=store,
        clock=ServiceClock(clock),
        real=clock,
        machines={},
        whole={}.__getitem__,
        rules=GuestRules(),
        saw=lambda machine, seen: None,
        on_stranger=lambda host: None,
        epoch=lambda: "e",
        replica="a",
        handed_over=HandedOver(),
        reached=ReachedLimits("relay"),
    )
    with store.read() as reading:
        plane.learn(Changes(tokens=tuple(reading.tokens().values())))
        plane.begin(1)
    clock.advance(SETTLE)
    for host in ("h0", "h1"):
        plane.watch.hear(host, version="1", age_seconds=0.0, machines=1, etag="")
    assert list(plane.alerts()) == []
    clock.advance(MINUTE)
    drain = Drain(host="h1", state=HostState.REBOOTING, requested_at=NOW, changed_at=NOW)
    plane.learn(Changes(drains=(drain,)))
    away = [(one.kind, one.about, one.since) for one in plane.alerts()]
    assert away == [(AlertKind.RELAY_AWAY, "h0", NOW + SETTLE)]
    up = msgspec.structs.replace(drain, state=HostState.UP)
    plane.learn(Changes(drains=(up,)))
    assert [one.about for one in plane.alerts()] == ["h0", "h1"]
