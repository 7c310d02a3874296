"""The body of an approval: what is taken, what is refused, and what is said of it."""

import pytest

from forewarn.protocol import codec, refusals
from forewarn.protocol.codec import Malformed
from protocol.world import EVENT_ID


def body(event_id: str) -> bytes:
    return b'{"StartRequests":[{"EventId":' + event_id.encode() + b"}]}"


def test_an_approval_is_written_as_clients_write_it() -> None:
    assert codec.encode_start_requests([EVENT_ID, "b"]) == (
        b'{"StartRequests":[{"EventId":"C1BF8322-4CBF-4FC4-9C45-B40CF3106D0E"},{"EventId":"b"}]}'
    )
    assert codec.encode_start_requests([]) == b'{"StartRequests":[]}'


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (b'{"StartRequests":[]}', ()),
        (b' { "StartRequests" : [ { "EventId" : "a" } ] } \r\n', ("A",)),
        (b'{"StartRequests":[{"EventId":"b"},{"EventId":"A"},{"EventId":"B"}]}', ("B", "A")),
        (b'{"DocumentIncarnation":7,"StartRequests":[{"EventId":"A"}]}', ("A",)),
        (b'{"StartRequests":[{"EventId":"A"}],"DocumentIncarnation":"7"}', ("A",)),
        (b'{"StartRequests":[{"Extra":{"EventId":1},"EventId":"A","x":null}],"y":[]}', ("A",)),
        (b'{"StartRequests":[],"DocumentIncarnation":' + b"9" * 5000 + b"}", ()),
        (b'{"StartRequests":[],"DocumentIncarnation":-1e999999}', ()),
        (b'{"StartRequests":[],"DocumentIncarnation":1.5}', ()),
        (b'{"startRequests":[{"eventId":"A","eventStatus":"Scheduled"}]}', ("A",)),
        (b'{"STARTREQUESTS":[{"eventid":"A"}],"startRequest":1}', ("A",)),
        (b'{"StartRequests":[{"EventId":"A"}],"startRequests":null}', ("A",)),
        (b'{"startRequests":[],"STARTREQUESTS":1,"StartRequests":[{"EventId":"A"}]}', ("A",)),
        (b'{"StartRequests":[{"eventId":7,"EventId":"A","EVENTID":"B"}]}', ("A",)),
        (b'\xef\xbb\xbf{"StartRequests":[]}', ()),
        (body('"not a GUID"'), ("NOT A GUID",)),
        (body('""'), ("",)),
        (body('"\\u00e9"'), ("é",)),
        (body('"\\ud83d\\ude00"'), ("\U0001f600",)),
    ],
)
def test_an_approval_is_read_leniently(written: bytes, read: tuple[str, ...]) -> None:
    assert codec.decode_start_requests(written) == read


@pytest.mark.parametrize("letter", ["é", "ß", "\u0131", "\ufb01", "\u01c6"])
def test_ids_are_compared_by_ascii_case_alone(letter: str) -> None:
    assert codec.decode_start_requests(body(f'"a{letter}"')) == (f"A{letter}",)


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_an_approval_may_come_in_any_unicode_encoding(encoding: str, mark: str) -> None:
    written = (mark + body('"A"').decode()).encode(encoding)
    assert codec.decode_start_requests(written) == ("A",)


@pytest.mark.parametrize("encoding", ["iso-8859-1", "cp1252", "cp1250"])
def test_windows_powershell_may_send_a_whole_event_back_in_its_own_encoding(encoding: str) -> None:
    written = '{"StartRequests":[{"EventId":"A","Description":"Wartung für den Host"}]}'
    assert codec.decode_start_requests(written.encode(encoding)) == ("A",)


def test_an_id_outside_ascii_in_another_encoding_is_no_known_one() -> None:
    assert codec.decode_start_requests(body('"é"').replace("é".encode(), b"\xe9")) == ("\ufffd",)


WRONG = [
    (b"", "is empty"),
    (b"\xff{}", "is not JSON"),
    (b"\xff\xfe", "is not JSON"),
    (b"\xef\xbb\xbf", "is not JSON"),
    (b'\xef\xbb\xbf\xef\xbb\xbf{"StartRequests":[]}', "is not JSON"),
    (b' \xef\xbb\xbf{"StartRequests":[]}', "is not JSON"),
    (b" ", "is not JSON"),
    (b"{", "is not JSON"),
    (b'{"StartRequests":[]}x', "is not JSON"),
    (b"StartRequests=%5B%5D", "is not JSON"),
    (b'{"StartRequests":[],"x":NaN}', "is not JSON"),
    (b'{"StartRequests":[],"x":-Infinity}', "is not JSON"),
    (b'{"StartRequests":[{"EventId":"a\nb"}]}', "is not JSON"),
    (b'{"StartRequests":[],"x":01}', "is not JSON"),
    (b'{"x":' + b"[" * 50_000, "is nested too deeply"),
    (b'{"x":' * 13_000, "is nested too deeply"),
    (b'{"a":1,"b":2,"b":3}', "names 'b' twice in one object"),
    (b'{"StartRequests":[{"EventId":"A","EventId":"B"}]}', "names 'EventId' twice in one object"),
    (b'{"' + b"k" * 200 + b'":1,"' + b"k" * 200 + b'":1}', "names '" + "k" * 100 + "...' twice"),
    (b'{"\\ud800":1,"\\ud800":1}', "names '?' twice in one object"),
    (b"[]", "is not an object"),
    (b"null", "is not an object"),
    (b"1", "is not an object"),
    (b'"StartRequests"', "is not an object"),
    (b"{}", "has no StartRequests"),
    ('{"\u017ftartRequests":[]}'.encode(), "has no StartRequests"),  # no other letter stands for s
    (b'{"startRequests":[],"STARTREQUESTS":[]}', "names 'StartRequests' twice in one object"),
    (b'{"StartRequests":[{"eventid":"A","eventId":"B"}]}', "names 'EventId' twice in one object"),
    (b'{"StartRequests":{}}', "has StartRequests that is not a list"),
    (b'{"StartRequests":null}', "has StartRequests that is not a list"),
    (b'{"StartRequests":"A"}', "has StartRequests that is not a list"),
    (b'{"StartRequests":[null]}', "has no object as entry 1 of StartRequests"),
    (b'{"StartRequests":[[]]}', "has no object as entry 1 of StartRequests"),
    (b'{"StartRequests":[{}]}', "has no EventId in entry 1 of StartRequests"),
    (body("null"), "has an EventId that is not a string in entry 1 of StartRequests"),
    (body("1" * 10_000), "has an EventId that is not a string in entry 1 of StartRequests"),
    (body("[]"), "has an EventId that is not a string in entry 1 of StartRequests"),
    (body('"\\ud800"'), "has an EventId that is not a string in entry 1 of StartRequests"),
]


@pytest.mark.parametrize(("written", "said"), WRONG, ids=lambda value: repr(value)[:40])
def test_what_is_no_approval_is_refused_by_name(written: bytes, said: str) -> None:
    with pytest.raises(Malformed) as caught:
        codec.decode_start_requests(written)
    assert str(caught.value).startswith(said)
    assert len(str(caught.value)) < 150


def test_a_thousand_entries_are_taken_and_one_more_is_refused() -> None:
    assert refusals.MAX_START_REQUESTS == 1000
    thousand = [f"{number:036}" for number in range(1000)]
    assert codec.decode_start_requests(codec.encode_start_requests(thousand)) == tuple(thousand)
    with pytest.raises(Malformed, match=r"^has 1001 StartRequests$"):
        codec.decode_start_requests(codec.encode_start_requests([*thousand, "A"]))


def test_entries_are_counted_before_doubles_are_folded() -> None:
    assert codec.decode_start_requests(codec.encode_start_requests(["A"] * 1000)) == ("A",)
    with pytest.raises(Malformed, match=r"^has 1001 StartRequests$"):
        codec.decode_start_requests(codec.encode_start_requests(["A"] * 1001))


def test_a_thousand_approvals_fit_the_limit_of_a_body() -> None:
    assert len(codec.encode_start_requests([EVENT_ID] * 1000)) < refusals.MAX_BODY_BYTES
