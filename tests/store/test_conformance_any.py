"""Every store keeps every promise on values and changes made by chance. Apart: it takes longest."""

from store import conformance, conformance_any

TestAny = conformance_any.Any
TestValues = conformance.Values
