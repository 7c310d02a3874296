"""What an event's three actions may leave in their log, however often their agent was interrupted.

The actions are a, b and c, undone by un-a, un-b and un-c; only b may be begun again by itself.
"""

NAMES = ["a", "b", "c"]
REPEATABLE = {"b", "un-b"}


def judge(log: list[str], words: int) -> None:
    """Judge what one event has left in the log.

    Args:
        log: Its lines.
        words: How often somebody has said that what was cut may be undone again.
    """
    begun = [line.removesuffix(" begins") for line in log if line.endswith(" begins")]
    for name in set(begun) - REPEATABLE:
        assert begun.count(name) <= 1 + words * name.startswith("un-"), f"{name} twice: {log}"
    done = [name for name in begun if name in NAMES]
    assert done == sorted(done), f"in their order: {log}"
    undone = [name.removeprefix("un-") for name in begun if name not in NAMES]
    assert undone == sorted(undone, reverse=True), f"the last first: {log}"
    assert set(done) <= set(undone), f"all of it: {log}"
    assert begun[: len(done)] == done, f"nothing is done any more when it is over: {log}"
    for name in undone:
        assert f"un-{name} ends" in log, f"undone to the end: {log}"
