"""A copy knows what became other than it was, and nothing else."""

from forewarn.maintenance.transitions import TrackedDict


def test_what_was_written_anew_or_otherwise_is_told_in_the_order_of_writing() -> None:
    before = {"a": (1,), "b": (2,), "c": (3,)}
    copy = TrackedDict(before)
    copy["d"] = (4,)
    copy["b"] = (5,)
    assert copy.changed() == ((4,), (5,))
    assert before == {"a": (1,), "b": (2,), "c": (3,)}


def test_an_equal_value_changes_nothing_even_if_it_is_another_object() -> None:
    one, other = [1], [1]
    copy = TrackedDict({"a": one})
    copy["a"] = other
    assert copy.changed() == ()
