"""Names of agents for people.

An id that its owner chose identifies the agent for people. The id of a target (`tgt_…`) does not: its URL is
shown until it has a name.
"""

from lifesign.domain.targets.target import is_target_id


def display_name(agent_id: str, name: str | None = None, target_url: str | None = None) -> str:
    """Return the name to show for an agent: its name, else the URL where it was found, else its id."""
    if name:
        return name
    return agent_id if target_url is None else place_of(target_url)


def place_of(target_url: str) -> str:
    """Return a target's URL, shortened for people: without `https://`, and without a path that is `/`."""
    place = target_url.removeprefix("https://")
    return place.removesuffix("/") if target_url.count("/") == 3 else place


def has_readable_id(agent_id: str) -> bool:
    """Return whether people can recognise an agent by its id."""
    return not is_target_id(agent_id)
