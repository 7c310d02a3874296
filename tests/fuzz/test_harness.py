"""The fuzzer's harness itself: it plays random programs, and it sees what is wrong."""

import asyncio
import random
from collections.abc import Iterator

import pytest

from forewarn.server.guest.connection import Connection
from forewarn.server.guest.endpoint import GuestEndpoint
from forewarn.server.guest.http import AnswerWriter
from fuzz import harness, programs
from fuzz.programs import Do
from seeds import SEED
from simulation.test_seeds import broken

COUNT = 400


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def random_program(chance: random.Random) -> bytes:
    """Return a program that mostly sends whole requests, so that it gets somewhere."""
    written = bytearray([chance.randrange(16)])
    for _ in range(chance.randrange(1, 60)):
        do = Do.SEND_TOKEN if chance.random() < 0.3 else Do(chance.randrange(len(Do)))
        if do is Do.SEND:
            size = chance.randrange(20)
            written += bytes([do, size]) + chance.randbytes(size + 1)
        elif do is Do.SEND_TOKEN or do in programs.NUMBERED:
            written += bytes([do, chance.randrange(256)])
        elif do is not Do.RETIRE or chance.random() < 0.1:
            written.append(do)
    return bytes(written)


def test_what_the_fuzzer_begins_with_is_in_order(loop: asyncio.AbstractEventLoop) -> None:
    begins_with = programs.seeds()
    assert sum(harness.play(program, loop) for program in begins_with) > len(begins_with)


def test_random_programs_find_nothing_wrong(loop: asyncio.AbstractEventLoop) -> None:
    chance = random.Random(SEED)
    answers = 0
    for number in range(COUNT):
        program = random_program(chance)
        try:
            answers += harness.play(program, loop)
        except Exception as error:
            error.add_note(f"SEED={SEED}, program {number}: {program.hex()}")
            raise
    assert answers > COUNT, f"SEED={SEED}"


def test_any_bytes_are_a_program() -> None:
    chance = random.Random(4)
    for _ in range(200):
        steps = programs.read(chance.randbytes(chance.randrange(300)))
        assert len(steps) <= programs.MAX_STEPS
    assert programs.read(bytes([Do.SEND, 9]) + b"GET") == [programs.Step(Do.SEND, data=b"GET")]


@pytest.mark.parametrize(
    ("place", "name", "first"),
    [
        (Connection, "retire", "raise ValueError"),
        (Connection, "expire", "self.deadline = NEVER; return"),
        (Connection, "_read_on", "return"),
        (AnswerWriter, "render", r"return b'HTTP/1.1 200\r\n\r\n'"),
        (GuestEndpoint, "admit", "1 / 0"),
    ],
    ids=["raises", "lets a deadline pass", "does not pause", "answers badly", "cannot refuse"],
)
def test_the_harness_sees_what_is_broken(
    place: type, name: str, first: str, loop: asyncio.AbstractEventLoop
) -> None:
    chance = random.Random(11)

    def play_some() -> None:
        for _ in range(COUNT):
            harness.play(random_program(chance), loop)

    with (
        broken(place, name, first),
        pytest.raises((AssertionError, ValueError, ZeroDivisionError)),
    ):
        play_some()
