"""A handler as its author's type checker sees it: mypy reads this file, and nobody runs it."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import assert_type

import forewarn


def drain() -> None: ...


def watched() -> None:
    with forewarn.Client() as client:
        assert_type(client, forewarn.Client)
        watch = client.watch(since=None, types=["Reboot"], mine=True, on_trouble=told)
        assert_type(watch, forewarn.Watch)
        for change in watch:
            assert_type(change, forewarn.Change)
            assert_type(change.event, forewarn.Event)
            assert_type(change.kind, str)
            assert_type(change.appeared, bool)
            if change.appeared and change.event.concerns_me:
                drain()
                assert_type(client.approve(change.event, "C1BF8322"), None)
            if isinstance(change, forewarn.Updated):
                assert_type(change.before, forewarn.Event)
            assert_type(change.last, bool)
        with client.watch() as other:
            assert_type(other, forewarn.Watch)
        assert_type(client.name, str | None)
        with client.documents(on_trouble=told) as documents:
            assert_type(documents, forewarn.Documents)
            for document in documents:
                assert_type(document, forewarn.Document)
                assert_type(documents.answered_at, float | None)


async def awaited() -> None:
    async with forewarn.AsyncClient("http://127.0.0.1:8080", name="web-0") as client:
        assert_type(client, forewarn.AsyncClient)
        watch = client.watch()
        assert_type(watch, forewarn.AsyncWatch)
        async for change in watch:
            assert_type(change, forewarn.Change)
            await client.approve(change.event, within_seconds=5.0)
        assert_type(await client.document(), forewarn.Document)
        assert_type(await client.events(mine=True), tuple[forewarn.Event, ...])
        assert_type(await client.machine(), forewarn.MachineIdentity)
        async with client.watch() as other:
            assert_type(other, forewarn.AsyncWatch)
        async with client.documents() as documents:
            assert_type(documents, forewarn.AsyncDocuments)
            async for document in documents:
                assert_type(document, forewarn.Document)


def asked(client: forewarn.Client, event: forewarn.Event) -> None:
    document = client.document()
    assert_type(document.incarnation, int | None)
    assert_type(document.events, tuple[forewarn.Event, ...])
    assert_type(client.events(mine=True), tuple[forewarn.Event, ...])
    assert_type(client.machine().name, str)
    assert_type(event.resources, tuple[str, ...])
    assert_type(event.not_before, datetime | None)
    assert_type(event.notice_left, timedelta | None)
    assert_type(event.concerns_me, bool | None)
    assert_type(event.source, str | None)
    assert_type(event.duration_seconds, int)
    pace = forewarn.Pace(poll_seconds=10.0)
    forewarn.Client(pace=pace)


def told(trouble: forewarn.Trouble) -> None:
    assert_type(trouble.reason, str)
    assert_type(trouble.over, bool)


def caught(client: forewarn.Client) -> None:
    try:
        client.approve("C1BF8322")
    except forewarn.RequestRefused as refused:
        assert_type(refused.status, int)
        assert_type(refused.text, str)
    except (forewarn.Unreachable, forewarn.BadAnswer, forewarn.Misuse) as error:
        base: forewarn.ClientError = error
        raise base from None


def wrong(client: forewarn.Client, event: forewarn.Event) -> None:
    """Each of these lines is a mistake, and mypy has to find it: an unused ignore is an error."""
    client.approve(3)  # type: ignore[arg-type]
    client.watch(None)  # type: ignore[call-arg]
    client.watch(types=[1])  # type: ignore[list-item]
    event.status = "Started"  # type: ignore[misc]
    forewarn.Client(5)  # type: ignore[arg-type]
    forewarn.Klient()  # type: ignore[attr-defined]
    handler: Callable[[str], None] = print
    client.watch(on_trouble=handler)  # type: ignore[arg-type]
