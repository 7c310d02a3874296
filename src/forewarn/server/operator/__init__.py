"""The operator plane: the HTTP API, Starlette on uvicorn. Never on a socket that guests can reach.

    plane        the API and the page on their sockets
    application  the API and the page as one application
    table        how routes are declared, with their roles; how requests are read and answered
    openapi      the OpenAPI document, made from the table
    api          what the routes about machines and their maintenance do
    administration   the same of the routes about the service: accounts, webhooks, health
    stream       news as server-sent events
    routing      the rooms below, as handlers reach them, and how lists are paged
    schemas      the JSON of requests and answers; maintenance_schemas and, for
                 what a maintenance may be, `maintenance.planner` have more
    fields       the fields of requests: one row for command line, page and body
    views        the rules' values as the API shows them
    errors       how failures are answered
    inventory    the fleet and what is live, in memory, and a search in it
    metrics      what Prometheus reads
    auth         who may ask: tokens, users, the Host and the Origin
    webhook_requests  signs and sends the requests of webhooks
    connections  uvicorn's connections, and their limits

Only `server` and, for the JSON's shapes, `cli` import this package.
"""
