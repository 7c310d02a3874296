"""The operator plane: the HTTP API, Litestar on uvicorn.

    api      the routes
    schemas  the routes and what goes over them, as values
    auth     who may ask: the token, the Host and Origin that are served

Never on a socket that guests can reach.
"""
