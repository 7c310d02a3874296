"""One connection to a replica: how it is made, and how it fails."""

import errno
import socket

import pytest

from client.scripted import document, losing, message, serving
from forewarn.client.transport import PROBES, RequestFailed
from forewarn.relay import streams
from forewarn.relay.settings import ReplicaAddress
from forewarn.relay.streams import ReplicaConnection


async def connected(port: int, *hosts: str) -> ReplicaConnection:
    places = [(socket.AF_INET, (host, port)) for host in hosts]
    replica = ReplicaAddress(tls=False, host="replica", port=port)
    return await streams.connect(replica, None, 0.5, places=places, max_body=999, probes=PROBES)


async def test_a_name_whose_first_address_loses_packets_is_reached_at_its_second() -> None:
    with losing() as (_, port), serving(lambda *_: message(204), port, "127.0.0.2"):
        stream = await connected(port, "127.0.0.1", "127.0.0.2")
        assert (await stream.ask(b"GET", "/", ())).status == 204
        stream.close()


async def test_a_connection_whose_peer_falls_silent_is_stale_and_no_late_answer() -> None:
    """The system says so by a TimeoutError, which is not the end of the time for an answer."""
    with serving(lambda *_: message(200, document())) as server:
        stream = await connected(server.port, "127.0.0.1")
        assert (await stream.ask(b"GET", "/", ())).status == 200
        stream._reader.set_exception(TimeoutError(errno.ETIMEDOUT, "timed out"))
        with pytest.raises(RequestFailed) as failed:
            await stream.ask(b"GET", "/", ())
        assert (failed.value.reason, failed.value.stale) == ("cut", True)
        assert not stream.is_open
