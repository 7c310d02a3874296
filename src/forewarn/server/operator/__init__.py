"""The operator plane: the HTTP API, Litestar on uvicorn. Never on a socket that guests can reach.

    application  the API and the page as one application, and their OpenAPI schema
    api          what each route does
    stream       news as server-sent events
    rollout_routes   what the routes of rollouts do; rollout_schemas has their JSON
    requests     what the routes are given: the rooms below, a request's body and query, judged
    schemas      the JSON of requests and answers
    views        the rules' values as the API shows them
    errors       how failures are answered
    inventory    the fleet and what is live, in memory
    metrics      what Prometheus reads
    routing      how routes are declared
    roles        which role each route needs
    auth         who may ask: the token, the Host and the Origin
    accounts     whose a token is, and who opened the unix socket
    account_routes  the routes of tokens and of the audit log
    webhook_routes   the routes of webhooks; webhook_schemas has their JSON
    webhook_formats  what the requests of webhooks have in them
    webhooks         signs, sends and counts them
    audit_log    writes down what was refused
    connections  uvicorn's connections, and their limits

Only `server` and, for the JSON's shapes, `cli` import this package.
"""
