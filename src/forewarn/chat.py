"""A text as the incoming webhooks of chat services take it.

The service's webhooks and the agent's messages have it in common, so it is below both.
"""

from typing import Final

import msgspec

CARD_VERSION: Final = "1.4"
"""Of Adaptive Cards: what every client of Teams draws."""


def slack(text: str) -> bytes:
    """Return the body for an incoming webhook of Slack."""
    # What is between < and > is a link or a mention to Slack.
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return msgspec.json.encode({"text": escaped})


def teams(text: str) -> bytes:
    """Return the body for "When a Teams webhook request is received" in a workflow of Teams."""
    # A card's text is Markdown, which finds nothing of its own here.
    escaped = "".join(f"\\{each}" if each in "\\`*_[]<>#" else each for each in text)
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": CARD_VERSION,
        "body": [{"type": "TextBlock", "text": escaped, "wrap": True}],
    }
    attachment = {
        "contentType": "application/vnd.microsoft.card.adaptive",
        "contentUrl": None,
        "content": card,
    }
    return msgspec.json.encode({"type": "message", "attachments": [attachment]})
