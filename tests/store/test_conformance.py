"""Every store of ours keeps every promise of the port."""

from store import conformance, conformance_any, conformance_history, conformance_together


class TestValues(conformance.Values):
    """See `conformance`."""


class TestQuestions(conformance.Questions):
    """See `conformance`."""


class TestHistory(conformance_history.History):
    """See `conformance`."""


class TestTogether(conformance_together.Together):
    """See `conformance`."""


class TestAny(conformance_any.Any):
    """See `conformance_any`."""
