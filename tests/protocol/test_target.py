"""A request's target: where it leads, whatever its bytes."""

import pytest

from forewarn.protocol import exchange
from forewarn.protocol.exchange import Resource, Target

EVENTS = Target(resource=Resource.EVENTS)


@pytest.mark.parametrize(
    "path",
    [
        b"/metadata/scheduledevents",
        b"/metadata/scheduledevents/",
        b"/metadata/scheduledevents?",
        b"/metadata/scheduledevents/?",
        b"/metadata/scheduledevents?&&",
        b"/METADATA/ScheduledEvents",
        b"/metadata/%73cheduledevents",
        b"/metadata/latest/scheduledevents",
        b"/Metadata/Latest/ScheduledEvents/",
        b"http://169.254.169.254/metadata/scheduledevents",
        b"HTTP://host:80/metadata/scheduledevents",
    ],
)
def test_a_path_is_known_in_any_case_with_one_slash_at_its_end(path: bytes) -> None:
    assert exchange.read_target(path) == EVENTS


@pytest.mark.parametrize(
    "path",
    [
        b"",
        b"*",
        b"?",
        b"metadata/scheduledevents",
        b"//",
        b"/metadata//",
        b"/metadata/latest",
        b"/metadata/scheduledevents//",
        b"/metadata//scheduledevents",
        b"//metadata/scheduledevents",
        b"/metadata/scheduledevents/more",
        b"/metadata/latest/instance",
        b"/metadata/latest/scheduledevents/more",
        b"/metadata/versions/2017-03-01",
        b"/metadata/scheduledevent",
        b"/metadata%2Fscheduledevents",
        b"/metadata/scheduledevent\xc5\xbf",
        b"/metadata/scheduledevents%00",
        b"/metadata/scheduledevents#",
        b"/metadat%FF/scheduledevents",
        b"/other/scheduledevents",
        b"/vm",
        b"/vm/web-0",
        b"/vm/web-0/",
        b"/vm//metadata/scheduledevents",
        b"/vm/web-0/scheduledevents",
        b"/vm/a/b/metadata/scheduledevents",
        b"/vm/a/vm/b/metadata/scheduledevents",
        b"/vm/metadata/scheduledevents",
        b"/machine/web-0/metadata/scheduledevents",
        b"https://host/metadata/scheduledevents",
        b"ftp://host/metadata/scheduledevents",
        b"http://metadata/scheduledevents",
    ],
)
def test_every_other_path_leads_nowhere(path: bytes) -> None:
    assert exchange.read_target(path) is None


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        (b"/", Resource.ROOT),
        (b"/?api-version=2021-02-01", Resource.ROOT),
        (b"http://host", Resource.ROOT),
        (b"http://host?/metadata/scheduledevents", Resource.ROOT),
        (b"/metadata", Resource.METADATA),
        (b"/Metadata/", Resource.METADATA),
        (b"/metadata/identity/oauth2/token", Resource.IDENTITY),
        (b"/metadata/Identity/", Resource.IDENTITY),
        (b"/metadata/LoadBalancer/", Resource.LOAD_BALANCER),
    ],
)
def test_what_the_original_has_besides_is_known(path: bytes, resource: Resource) -> None:
    found = exchange.read_target(path)
    assert found is not None
    assert found.resource is resource


def test_the_neighbours_are_known() -> None:
    assert exchange.read_target(b"/metadata/VERSIONS/") == Target(resource=Resource.VERSIONS)
    assert exchange.read_target(b"/metadata/Instance") == Target(resource=Resource.INSTANCE)
    below = ("Compute", "osProfile")
    assert exchange.read_target(b"/metadata/instance/Compute/osProfile/") == Target(
        resource=Resource.INSTANCE, below=below
    )
    assert exchange.read_target(b"/metadata/instance/a%2Fb//") == Target(
        resource=Resource.INSTANCE, below=("a/b", "")
    )
    assert exchange.read_target(b"http://host/metadata/instance/a://b") == Target(
        resource=Resource.INSTANCE, below=("a:", "", "b")
    )


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        (b"/vm/web-0", "web-0"),
        (b"/VM/Web-0", "Web-0"),
        (b"/vm/batch%5F0", "batch_0"),
        (b"/vm/metadata", "metadata"),
        (b"/vm/%ff", "\ufffd"),
        (b"http://localhost:8080/vm/a", "a"),
    ],
)
def test_a_machines_name_before_the_path_is_read_as_written(prefix: bytes, name: str) -> None:
    for rest, resource in (
        (b"/metadata/scheduledevents", Resource.EVENTS),
        (b"/metadata/versions", Resource.VERSIONS),
        (b"/metadata/instance", Resource.INSTANCE),
    ):
        assert exchange.read_target(prefix + rest) == Target(resource=resource, machine=name)


@pytest.mark.parametrize(
    ("query", "api_version", "form", "doubled"),
    [
        (b"api-version=2020-07-01", "2020-07-01", None, None),
        (b"API-Version=2020-07-01&Format=TEXT", "2020-07-01", "TEXT", None),
        (b"api%2Dversion=2020%2d07-01", "2020-07-01", None, None),
        (b"x=1&api-version=a=b&y&=", "a=b", None, None),
        (b"api-version", "", None, None),
        (b"api-version=2020-07-01+", "2020-07-01 ", None, None),
        (b"api-version=1?api-version=2", "1?api-version=2", None, None),
        (b"api-version=1&api-version=1", "1", None, "api-version"),
        (b"api-version=1&API-VERSION=2", "1", None, "api-version"),
        (b"x&X=1", None, None, "x"),
        (b"b=1&a=1&a=2&b=2", None, None, "a"),
        (b"=1&=2", None, None, ""),
        (b"format=json&format=text", None, "json", "format"),
        (b"api_version=1", None, None, None),
        (b"api-version=%ff", "\ufffd", None, None),
        (b"api-version=%zz%", "%zz%", None, None),
    ],
)
def test_parameters_are_read_once_by_a_name_in_any_case(
    query: bytes, api_version: str | None, form: str | None, doubled: str | None
) -> None:
    assert exchange.read_target(b"/metadata/scheduledevents?" + query) == Target(
        resource=Resource.EVENTS, api_version=api_version, format=form, doubled=doubled
    )


def test_latest_in_the_path_forgets_the_version_of_the_query() -> None:
    read = exchange.read_target(b"/metadata/latest/scheduledevents?api-version=2020-07-01")
    assert read == EVENTS


def test_a_long_target_is_read_as_a_short_one_is_and_not_remembered() -> None:
    start = b"/metadata/scheduledevents?api-version=2020-07-01&x="
    kept = start + b"y" * (exchange.MAX_REMEMBERED_TARGET_BYTES - len(start))
    expected = Target(resource=Resource.EVENTS, api_version="2020-07-01")
    exchange._remembered.cache_clear()
    assert exchange.read_target(kept) == expected
    assert exchange._remembered.cache_info().currsize == 1
    assert exchange.read_target(kept + b"y") == expected
    assert exchange._remembered.cache_info().currsize == 1
    assert exchange._remembered.cache_info().maxsize == 1024


def test_ten_thousand_parameters_are_read_in_one_pass() -> None:
    query = b"&".join(b"p%d=1" % number for number in range(10_000))
    read = exchange.read_target(b"/metadata/scheduledevents?" + query + b"&p9999=1")
    assert read is not None
    assert read.doubled == "p9999"
