"""The operator plane: the HTTP API, Litestar on uvicorn.

    schemas             the routes and what goes over them, as values
    steering            the shapes of an operator's word on what is pending
    vitals              the service itself as values: its time, whether it is well
    api                 the routes put together; every failure answered in one form
    fleet_routes        apply, list, show, remove
    maintenance_routes  request, list, show; what is live, and history
    steering_routes     approve, cancel, resume, postpone, hold, release; what needs an operator
    metrics             what Prometheus reads: every room's figures, gathered at each scrape
    metrics_routes      the route that it scrapes
    desk                what the routes work with
    roster              the fleet and what is live, in memory
    views               the rules' values as the API shows them
    cautions            what an operator who changes the fleet is warned of
    cursors             where a page of names ended
    bodies              a request's body and query, read strictly
    mistakes            what is wrong with a body, in words
    auth                who may ask: the token, the Host and Origin that are served
    sockets             the unix socket and the TCP one, opened with care

Never on a socket that guests can reach.
"""
