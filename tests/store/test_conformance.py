"""Every store of ours keeps every promise of the port."""

from store import conformance


class TestValues(conformance.Values):
    """See `conformance`."""


class TestQuestions(conformance.Questions):
    """See `conformance`."""


class TestHistory(conformance.History):
    """See `conformance`."""


class TestTogether(conformance.Together):
    """See `conformance`."""
