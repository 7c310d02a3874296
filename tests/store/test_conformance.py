"""Every store of ours keeps every promise of the port."""

from store import conformance

TestStories = conformance.Stories
TestHistory = conformance.History
TestOutbox = conformance.Outbox
TestMembers = conformance.Members
TestText = conformance.Text
TestTogether = conformance.Together
