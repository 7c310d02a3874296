"""Every store keeps every promise on values and changes made by chance. Apart: it takes longest."""

from store import conformance, conformance_any


class TestAny(conformance_any.Any):
    """See `conformance_any`."""


class TestValues(conformance.Values):
    """See `conformance`."""
