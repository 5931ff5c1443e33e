"""Web pages of the registry: rendered on the server, one small script, no build step.

A page calls the operations of the API (`RequestContext.ask`). Data that the API does not offer comes from
`storage`.
"""
