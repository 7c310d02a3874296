"""Every store of ours keeps every promise of the port."""

from store import conformance, conformance_outbox, conformance_together

TestQuestions = conformance.Questions
TestHistory = conformance.History
TestAccounts = conformance.Accounts
TestWebhooks = conformance.Webhooks
TestRelays = conformance.Relays
TestTogether = conformance_together.Together
TestOutbox = conformance_outbox.Outbox
TestNews = conformance_outbox.News
TestMembers = conformance_outbox.Members
TestText = conformance_outbox.Text
