"""The routes of webhooks."""

from collections.abc import Iterable

from litestar.params import FromPath, JSONBody

from forewarn.control import webhooks as orders
from forewarn.maintenance import model
from forewarn.maintenance import webhooks as rules
from forewarn.maintenance.webhooks import DeliveryFailure, Webhook
from forewarn.server import secret_files
from forewarn.server.operator import routing, webhook_schemas
from forewarn.server.operator.requests import Backend, TheBackend, TheCaller
from forewarn.server.operator.webhook_schemas import WebhookState
from forewarn.server.operator.webhooks import Webhooks
from forewarn.vocabulary import ErrorCode


@routing.get("/v1/webhooks", routing.WEBHOOKS)
async def list_webhooks(backend: TheBackend) -> webhook_schemas.WebhookList:
    """List the webhooks, and how each accepts what it is told."""
    found = await backend.read(lambda reading: reading.webhooks())
    return webhook_schemas.WebhookList(webhooks=_shown(found.values()))


@routing.post("/v1/webhooks", webhook_schemas.WebhookRequest, routing.WEBHOOKS, status=201)
async def add_webhook(
    backend: TheBackend, caller: TheCaller, data: JSONBody[webhook_schemas.WebhookRequest]
) -> webhook_schemas.NewWebhook:
    """Add a webhook for what happens from now on; the answer alone ever shows its secret."""
    sending = _sending(backend)
    rules.judge_url(data.url, insecure=data.insecure)
    rules.judge_types(data.types)
    webhook = model.mapped(
        Webhook,
        data,
        secret=secret_files.new_webhook_secret(),
        created_by=caller.by,
        created_at=backend.now(),
        done_sequence=0,
    )
    plane = backend.changing(caller, f"{webhook.name}: {webhook.format} to {webhook.shown_url}")
    added = await backend.done(plane.order(orders.add, webhook))
    sending.deliveries.look()
    (shown,) = _shown([added])
    return webhook_schemas.NewWebhook(webhook=shown, secret=added.secret)


@routing.delete("/v1/webhooks", routing.WEBHOOKS)
async def remove_webhooks(
    backend: TheBackend, caller: TheCaller, name: routing.Names
) -> webhook_schemas.WebhookList:
    """Remove webhooks, all or none; repeat `name`."""
    sending = _sending(backend)
    plane = backend.changing(caller, model.listed(name, routing.MAX_LISTED))
    removed = await backend.done(plane.order(orders.remove, name))
    sending.deliveries.look()
    return webhook_schemas.WebhookList(webhooks=_shown(removed))


@routing.post("/v1/webhooks/{name:str}/tests", webhook_schemas.WebhookTestRequest, routing.WEBHOOKS)
async def test_webhook(
    backend: TheBackend,
    caller: TheCaller,
    name: FromPath[str],
    data: JSONBody[webhook_schemas.WebhookTestRequest],
) -> webhook_schemas.WebhookTest:
    """Send a webhook a test; if it is accepted, a webhook that failed or was disabled goes on."""
    del data  # it is empty
    sending = _sending(backend)
    found = await backend.read(lambda reading: reading.webhooks())
    webhook = found.get(name)
    if webhook is None:
        raise model.unknown("webhook", name)
    sent = await sending.test(webhook)
    trouble = sent.reason if isinstance(sent, DeliveryFailure) else ""
    caller.detail = f"{name}: {trouble}" if trouble else name
    if not trouble:
        plane = backend.changing(caller, webhook.name)
        webhook = await backend.done(plane.order(orders.enable, webhook))
        sending.deliveries.look()
    (shown,) = _shown([webhook])
    return webhook_schemas.WebhookTest(accepted=not trouble, trouble=trouble, webhook=shown)


def _sending(backend: Backend) -> Webhooks:
    if backend.webhooks is None:
        raise model.Refused(ErrorCode.CONFLICT, "an emulator has no webhooks")
    return backend.webhooks


def _shown(found: Iterable[Webhook]) -> tuple[webhook_schemas.WebhookView, ...]:
    return tuple(
        model.mapped(
            webhook_schemas.WebhookView, webhook, url=webhook.shown_url, state=_state(webhook)
        )
        for webhook in found
    )


def _state(webhook: Webhook) -> WebhookState:
    if webhook.disabled_at is not None:
        return WebhookState.DISABLED
    return WebhookState.ACTIVE if webhook.failing_since is None else WebhookState.FAILING
