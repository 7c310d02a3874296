"""The page of metrics as Prometheus' text format wants it, to the letter."""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.bench import Bench, command, event, rule
from forewarn.agent import metrics
from forewarn.agent.messages import Answered
from forewarn.agent.metrics import FAMILIES, PREFIX, Live, Metrics

NAME = r"[a-z_][a-z0-9_]*"
SAMPLE = re.compile(
    rf'({NAME})(?:\{{{NAME}="[^"\\\n]*"(?:,{NAME}="[^"\\\n]*")*\}})? (-?\d+(?:\.\d+)?)'
)
"""As Prometheus reads it; here no value of a label has anything to escape."""


def page(counted: Metrics, bench: Bench, last_look: float | None = 1763751958.1239) -> str:
    live = Live(healthy=True, endpoint_up=last_look is not None, last_look=last_look)
    return counted.page(bench.machine, bench.now) + counted.live_page(live).decode()


@pytest.fixture
def bench() -> Bench:
    made = Bench(rule(command("drain")))
    made.see(event())
    return made


def counted_over(bench: Bench) -> Metrics:
    counted = Metrics()
    for record in bench.journal:
        counted.wrote(record, bench.now)
    return counted


def test_each_family_is_told_once_with_help_and_type_before_its_samples(bench: Bench) -> None:
    text = page(counted_over(bench), bench)
    assert text.endswith("\n")
    lines = iter(text.removesuffix("\n").split("\n"))
    told: list[str] = []
    for line in lines:
        if line.startswith("# HELP "):
            _, _, name, said = line.split(" ", 3)
            told.append(name)
            family = FAMILIES[name.removeprefix(PREFIX)]
            assert said == family.help
            assert next(lines) == f"# TYPE {name} {family.kind}"
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample is not None, line
        assert sample[1] == told[-1]
    assert sorted(told) == sorted(PREFIX + name for name in FAMILIES)


def test_prometheus_own_parser_reads_every_family(bench: Bench) -> None:
    read = {
        each.name: each for each in text_string_to_metric_families(page(counted_over(bench), bench))
    }
    for name, family in FAMILIES.items():
        each = read[(PREFIX + name).removesuffix("_total")]
        assert (each.type, each.documentation) == (family.kind, family.help)
    taken = read[f"{PREFIX}events_taken"].samples
    assert [(sample.labels, sample.value) for sample in taken] == [({"type": "Reboot"}, 1)]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_counter_is_named_as_one_and_help_is_one_plain_sentence(name: str) -> None:
    family = FAMILIES[name]
    assert (family.kind == "counter") == name.endswith("_total")
    assert family.help.endswith(".")
    assert not set("\\\n`") & set(family.help)


def test_a_counter_is_told_to_its_last_digit(bench: Bench) -> None:
    counted = Metrics()
    counted.looks = 12_345_678
    assert f"\n{PREFIX}looks_total 12345678\n" in page(counted, bench)


def test_a_time_is_told_to_the_millisecond(bench: Bench) -> None:
    assert f"\n{PREFIX}last_look_timestamp_seconds 1763751958.124\n" in page(Metrics(), bench)


def test_what_is_not_known_is_not_told(bench: Bench) -> None:
    text = page(Metrics(), bench, last_look=None)
    assert f"\n{PREFIX}last_look_timestamp_seconds " not in text
    assert f"\n{PREFIX}endpoint_up 0\n" in text


@pytest.mark.parametrize(
    ("taken", "refused", "unanswered"), [(True, 0, 0), (False, 1, 0), (None, 0, 1)]
)
def test_an_approval_that_is_not_taken_is_counted_by_reason(
    bench: Bench, taken: bool | None, refused: int, unanswered: int
) -> None:
    counted = Metrics()
    counted.answered(Answered(1, taken))
    text = page(counted, bench)
    assert f'\n{PREFIX}approvals_failed_total{{reason="refused"}} {refused}\n' in text
    assert f'\n{PREFIX}approvals_failed_total{{reason="unanswered"}} {unanswered}\n' in text


def test_what_a_labels_value_must_not_hold_is_escaped() -> None:
    assert metrics._labels([("a", 'b"\\\n')]) == '{a="b\\"\\\\\\n"}'
