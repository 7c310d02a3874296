"""The agent: prepares a machine for maintenance by rules, approves, and brings it back.

Pure, without I/O, clock or chance: `action_settings`, `rules` (which of them takes an event),
`state` (what is remembered), `decider` and `approval` (all decisions), `messages` (their inputs and
outputs), `forecast`. Shells: `settings`, `journal`, `poller`, `actions`, `status`, `logs`; the
`daemon`, in which one thread decides and all others send it inputs; its `__main__`.

It stands on the client and never reaches maintenance, store, connectors, control or server. Only
the command line imports it.
"""
