"""`Prefer: wait=60` as RFC 7240 lets clients write it."""

import time

import pytest

from forewarn.protocol import exchange

WAITS = {
    (b"wait=60",): 60,
    (b"Wait = 60",): 60,
    (b'wait="60"',): 60,
    (b"  wait=60  ",): 60,
    (b"wait=007",): 7,
    (b"wait=120",): 120,
    (b"wait=121",): 120,
    (b"wait=" + b"9" * 6000,): 120,
    (b"wait=" + b"0" * 6000 + b"60",): 60,
    (b"respond-async, wait=60",): 60,
    (b"respond-async", b"handling=lenient, wait=60"): 60,
    (b"respond-async, wait=60; a=b; c",): 60,
    (b'foo="a, wait=5, \\", wait=6", wait=60',): 60,
    (b", ,wait=60,,",): 60,
    (b"wait=10, wait=20",): 10,
    (b"wait=10", b"wait=20"): 10,
    (b"(junk), @, =, wait=60",): 60,
    (b"waiting=5, await=6, wait=60",): 60,
}
DO_NOT_WAIT: list[tuple[bytes, ...]] = [
    (),
    (b"",),
    (b"wait",),
    (b"wait=",),
    (b'wait=""',),
    (b"wait=0",),
    (b"wait=00",),
    (b"wait=-1",),
    (b"wait=1.5",),
    (b"wait=1 5",),
    (b"wait=soon, wait=60",),
    (b'wait="60',),
    (b'wait=6"0"',),
    (b'foo="wait=60',),
    (b'foo="\\',),
    (b"wait=\xb2",),
    ("wait=\u0665".encode(),),
]


@pytest.mark.parametrize(("values", "seconds"), WAITS.items())
def test_a_wait_is_read_however_it_is_written(values: tuple[bytes, ...], seconds: int) -> None:
    assert exchange.wait_seconds(values) == seconds


@pytest.mark.parametrize("values", DO_NOT_WAIT)
def test_what_is_not_understood_is_passed_over(values: tuple[bytes, ...]) -> None:
    assert exchange.wait_seconds(values) == 0


@pytest.mark.parametrize(
    "piece", [b'"', b'"\\', b'\\"', b"a=", b"= ", b"\t", b'a="b",', b",", b"a", b'"\\",', b";"]
)
def test_no_header_takes_longer_than_its_length(piece: bytes) -> None:
    for before, after in ((b"", b""), (b"wait=", b"@"), (b'"', b"\\"), (b"a=", b'"')):
        value = before + piece * (16_000 // len(piece)) + after
        began = time.process_time()
        exchange.wait_seconds((value,))
        assert time.process_time() - began < 0.2  # quadratic would be seconds
