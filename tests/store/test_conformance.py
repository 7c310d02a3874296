"""Every store of ours keeps every promise of the port."""

from store import (
    conformance,
    conformance_accounts,
    conformance_history,
    conformance_outbox,
    conformance_relays,
    conformance_together,
    conformance_webhooks,
)

TestQuestions = conformance.Questions
TestHistory = conformance_history.History
TestTogether = conformance_together.Together
TestOutbox = conformance_outbox.Outbox
TestNews = conformance_outbox.News
TestMembers = conformance_outbox.Members
TestText = conformance_outbox.Text
TestAccounts = conformance_accounts.Accounts
TestWebhooks = conformance_webhooks.Webhooks
TestRelays = conformance_relays.Relays
