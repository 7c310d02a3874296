"""What the guest plane counts: every answer once, by what was asked for and status."""

from forewarn.server.guest.tally import OTHER, RESOURCES
from guest import room
from guest.room import EVENTS, get, post


def counted(plane: room.Room) -> dict[str, dict[int, int]]:
    found = plane.connections.answers.counts
    assert tuple(found) == RESOURCES
    return {resource: dict(counts) for resource, counts in found.items() if counts}


def test_every_answer_is_counted_by_what_was_asked_for() -> None:
    with room.opened() as (plane, turn):
        peer = plane.connect()
        peer.send(get() + get(EVENTS, "If-None-Match: 2") + post() + post(b"nonsense"))
        turn()
        peer.send(get("/metadata/versions") + get("/metadata/instance"))
        turn()
        peer.send(get("/metadata/instance?api-version=2021-02-01"))
        peer.send(get("/elsewhere") + get("/METADATA/ScheduledEvents"))
        turn()
        assert counted(plane) == {
            "events": {200: 1, 304: 1, 400: 1},
            "approvals": {200: 1, 400: 1},
            "versions": {200: 1},
            "instance": {200: 1, 400: 1},
            OTHER: {404: 1},
        }
        assert plane.connections.accepted == 1


def test_what_is_no_request_is_counted_as_other() -> None:
    with room.opened(room.Limits(connections=2)) as (plane, _):
        plane.connect().send(b"nonsense\r\n\r\n")
        peers = [plane.connect() for _ in range(3)]
        assert [bool(peer.got) for peer in peers] == [False, True, True]
        assert counted(plane) == {OTHER: {400: 1, 503: 2}}
        assert plane.connections.accepted == 4
        plane.pass_time(60)
        assert counted(plane) == {OTHER: {400: 1, 503: 2}}
