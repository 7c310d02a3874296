"""The page that operators open in a browser: HTML from the operator plane's TCP address.

    operation_routes  one operation, in a panel or alone
    routes       what each address of the page answers, and its forms
    now          what Now shows, made for all windows of one range together
    facts        counters of the fleet and its operations, kept by the changefeed
    timeline     operations as bars in lanes of a scope's update domains
    fleet_map    a square for each machine, or for update domains
    machines     the list of machines, with machine_search, and what is known of one
    maintenance  what is open and what was, one maintenance, and the form that asks for one
    rollouts     the list of rollouts, one with its waves and units, and the form
    history      operations that were, with history_export as files; the audit log
    orders       what operators do about these, and what each order will come to
    sending      the pages that ask once more, and forms that are refused
    shared       makes once what many windows show
    sent_forms   answers a form that is sent twice as it was answered first
    forms        the fields of forms, and how they become requests of the API
    standing     how an operation, a maintenance or a rollout is, as a word
    rendering    templates to HTML, on a thread of its own; the files that browsers keep
    formats      times and spans as the page writes them
    live         tells open pages that something has changed
    logins       one-time links, and the sessions that they begin
    templates/   base.html is around every page; a page fills its block `main`
    static/      the style, the script, and htmx with its licence

A request takes immutable values on the event loop and renders them on the page's thread: guests
never wait for a page. A form calls the same plane as the API. Nothing here reads the store on the
loop, and nothing but `server` imports this package.
"""
