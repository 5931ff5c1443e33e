"""Pages of the registry for people: rendered on the server, one small script, no build step.

A page calls the operations of the API (`RequestContext.ask`). What the API does not offer is read from
`storage`.
"""
