"""The prober: looks at agents from outside, safely and politely, and says what it saw.

    definition      which targets, what is asked, how often, with which limits?     (probes/*.yml)
    directories/    which targets does a directory list?
    ledger          where do targets come from, and where do results go?
    worker          claim a shard, probe its targets when they are due, report
    probe           card, interface, document of one target: one observation
    visit           how long, and how often, is one target asked within a probe?
    welcome, opt_out, robots
                    who is left alone?
    discovery, transport, readiness, message
                    what do card, interface, health document and a message say?
    fetch           one bounded request to an address that was judged
    evidence        how are the bytes behind a finding kept?
    results_file    how do observations get into a file?
    census          what share of a directory is alive?

It knows no database: anything with `claim` and `report` gives it work.
"""
