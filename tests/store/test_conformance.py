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


class TestQuestions(conformance.Questions):
    """See `conformance`."""


class TestHistory(conformance_history.History):
    """See `conformance`."""


class TestTogether(conformance_together.Together):
    """See `conformance`."""


class TestOutbox(conformance_outbox.Outbox):
    """See `conformance_outbox`."""


class TestNews(conformance_outbox.News):
    """See `conformance_outbox`."""


class TestMembers(conformance_outbox.Members):
    """See `conformance_outbox`."""


class TestText(conformance_outbox.Text):
    """See `conformance_outbox`."""


class TestAccounts(conformance_accounts.Accounts):
    """See `conformance_accounts`."""


class TestWebhooks(conformance_webhooks.Webhooks):
    """See `conformance_webhooks`."""


class TestRelays(conformance_relays.Relays):
    """See `conformance_relays`."""
