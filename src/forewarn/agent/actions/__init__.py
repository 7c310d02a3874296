"""The actions of a rule: one small class for each kind, with `prepare` and `recover`.

`action` has `ready` and `log`, `program` has `command`, `service` and `signal`, `haproxy` has its
own, `http` has `http` and `notify`; `runner` runs them, each in a thread of its own. An action ends
soon after a request to stop, and raises `ActionFailed` if it could not do its work. Nothing here
needs POSIX to be imported.
"""
