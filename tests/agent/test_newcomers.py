"""Events that come before the machine knows its own name."""

from agent.bench import ME, Bench, command, event, rule, service
from forewarn.agent.newcomers import NAME_SECONDS

ANYBODYS = rule(service(), name="anybody's", match={"machine": "any"})


def test_no_rule_takes_an_event_while_its_machines_name_may_still_come() -> None:
    """A rule for any machine would keep what another says of this machine's own."""
    bench = Bench(rule(command("drain")), ANYBODYS, me=None)
    assert bench.see(event(concerns_me=None)) == []
    assert bench.wait(NAME_SECONDS - 1) == []
    assert bench.machine.busy
    bench.me = ME
    assert bench.see(event()) == ["do drain"]


def test_a_name_that_does_not_come_keeps_no_event_waiting() -> None:
    bench = Bench(rule(command("drain")), ANYBODYS, me=None)
    bench.see(event(concerns_me=None))
    assert bench.wait(NAME_SECONDS - 1) == []
    assert bench.see(event("E1", concerns_me=None), event("E2", concerns_me=None)) == []
    assert bench.wait(1) == ["do web"]
    assert set(bench.machine.ledger.cases) == {"E1"}
    bench.wait(NAME_SECONDS)
    assert set(bench.machine.ledger.cases) == {"E1", "E2"}


def test_nothing_is_undone_that_an_event_of_unknown_machines_may_want() -> None:
    bench = Bench(ANYBODYS)
    bench.see(event("E1"))
    bench.end("web")
    bench.me = None
    assert bench.see(event("E2", concerns_me=None)) == []
    assert bench.wait(NAME_SECONDS) == []
    assert bench.machine.ledger.cases["E2"].rule == ANYBODYS
    assert bench.see() == ["undo web"]
