"""The operator plane: the HTTP API, Litestar on uvicorn. Never on a socket that guests can reach.

    application  the API and the page as one application, and their OpenAPI schema
    api          what the routes about machines and their maintenance do
    administration   the same of the routes about the service: accounts, webhooks, health
    stream       news as server-sent events
    routing      how routes are declared, with their roles, how lists are paged, and what handlers
                 are given
    schemas      the JSON of requests and answers; maintenance_schemas, webhook_schemas and, for
                 what a maintenance may be, `maintenance.planner` have more
    views        the rules' values as the API shows them
    errors       how failures are answered
    inventory    the fleet and what is live, in memory, and a search in it
    metrics      what Prometheus reads
    auth         who may ask: tokens, users, the Host and the Origin
    webhook_requests  signs and sends the requests of webhooks
    connections  uvicorn's connections, and their limits

Only `server` and, for the JSON's shapes, `cli` import this package.
"""
