"""The header by which an agent says how its machine fares (protocol.md section 10)."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.protocol import codec
from forewarn.protocol.codec import MAX_AGENT_REASON, AgentReport
from forewarn.vocabulary import AgentStatus


@pytest.mark.parametrize("state", AgentStatus)
def test_every_state_is_read_without_a_reason(state: AgentStatus) -> None:
    assert codec.decode_agent_report(state.value.encode()) == AgentReport(state)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'held; reason="the drain failed"', "the drain failed"),
        (b'held;REASON="x"', "x"),
        (rb'held ; reason="say \"no\" \\ twice"', r'say "no" \ twice'),
        (b'held; reason=""', ""),
        ('held; reason="é"'.encode(), "é"),
    ],
)
def test_a_reason_is_a_quoted_string(value: bytes, reason: str) -> None:
    assert codec.decode_agent_report(value) == AgentReport(AgentStatus.HELD, reason)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"asleep",
        b"READY",
        b"ready, back",
        b"ready; reason=unquoted",
        b'ready; reason="open',
        b'ready; other="x"',
        b'ready; reason="a" trailing',
        b'ready; reason="\x1b[31mred"',
        b'ready; reason="line\nbreak"',
        b'ready; reason="\xff"',
        b'ready; reason="%s"' % (b"x" * (MAX_AGENT_REASON + 1)),
    ],
)
def test_malformed_values_are_ignored(value: bytes) -> None:
    assert codec.decode_agent_report(value) is None


def test_the_longest_reason_is_read_although_every_byte_is_escaped() -> None:
    value = b'held; reason="%s"' % (rb"\"" * MAX_AGENT_REASON)
    assert codec.decode_agent_report(value) == AgentReport(AgentStatus.HELD, '"' * MAX_AGENT_REASON)


@pytest.mark.parametrize(
    ("reason", "written"),
    [
        ("", "held"),
        ("the drain failed", 'held; reason="the drain failed"'),
        (r'say "no" \ twice', r'held; reason="say \"no\" \\ twice"'),
        ("two\nlines\x1b[31m", 'held; reason="two lines [31m"'),
        ("half a character \ud83d", 'held; reason="half a character  "'),
        ("a" * (MAX_AGENT_REASON + 1), f'held; reason="{"a" * MAX_AGENT_REASON}"'),
        ("a" * (MAX_AGENT_REASON - 1) + "é", f'held; reason="{"a" * (MAX_AGENT_REASON - 1)}"'),
    ],
)
def test_a_reason_is_written_in_one_quoted_line_of_bounded_length(
    reason: str, written: str
) -> None:
    assert codec.encode_agent_report(AgentReport(AgentStatus.HELD, reason)) == written


@given(st.sampled_from(AgentStatus), st.text(max_size=300))
def test_what_is_written_is_read_again(state: AgentStatus, reason: str) -> None:
    written = codec.encode_agent_report(AgentReport(state, reason)).encode()
    read = codec.decode_agent_report(written)
    assert read is not None
    assert read.status is state
    assert len(read.reason.encode()) <= MAX_AGENT_REASON
    if reason.isprintable() and len(reason.encode("utf-8", "replace")) <= MAX_AGENT_REASON:
        assert read.reason == reason


@pytest.mark.parametrize(
    "value", [b"a" * 512, b'held; reason="' + b"\\a" * 240, b"held;" + b" " * 500]
)
def test_a_value_on_which_a_careless_pattern_never_ends_is_no_report(value: bytes) -> None:
    assert codec._agent_report.__wrapped__(value) is None


def test_long_values_of_strangers_are_not_remembered() -> None:
    tracemalloc.start()
    try:
        for number in range(1024):
            codec.decode_agent_report(b"%16384d" % number)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1024 * 1024
