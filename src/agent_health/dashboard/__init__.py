"""What people see of a registry in a browser: pages made on the server, one small script, no build step.

    dashboard.py         wires the pages together; what `create_app` takes as a face
    desk.py              how a request becomes a page, or a deed of the API
    visitors.py          who is looking, and whether a form is ours
    log_in.py            how somebody logs in and out
    pages.py             how a page looks as a response; templates/ holds them
    assets.py            how style, script and pictures are served; static/ holds them
    words.py             in which words pages tell what the registry knows
    fleet_facts.py       what is counted of the whole fleet, and how old the counts may be
    event_lines.py       what an event says to people, in one line
    live_feed.py         how a thousand open pages see what happens
    overview.py          the fleet at a glance
    agents_table.py      the table of agents

A page asks the registry as a program does, by the same operations (`desk.Look.ask`); what the API does not
tell it reads from `storage`. Nothing here decides anything.
"""

from agent_health.dashboard.dashboard import Dashboard

__all__ = ["Dashboard"]
