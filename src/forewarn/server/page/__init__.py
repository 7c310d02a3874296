"""The page that operators open in a browser: HTML from the operator plane's TCP address.

    routes       the frame of every page, the log-in, the search, what is refused
    now          what Now shows, and its counts; `maintenance.alerts` judges what needs somebody
    timeline     operations as bars in lanes of a scope's update domains; _timeline.html draws it
    fleet_map    a square for each machine, or for update domains
    machines     the list of machines, and what is known of one
    maintenance  maintenance: the list, one with its units, the form, and orders about it
    history      operations that were, as files too; the audit log
    orders       how each of these is, as a word; what operators do about it, and what it comes to
    forms        how forms become requests of the API, and where a refusal is shown
    rendering    templates to HTML, on a thread of its own; times; the files that browsers keep
    live         tells open windows of changes, and makes once what many show
    templates/   base.html is around every page; a page fills its block `main`
    static/      the style, the script, and htmx with its licence

A request takes immutable values on the event loop and renders them on the page's thread: guests
never wait for a page. A form calls the same plane as the API. Nothing here reads the store on the
loop, and nothing but `server` imports this package.
"""
