"""How is it said how many of something there are?"""


def pluralize(count: int, noun: str) -> str:
    """Return a count with its thousands apart, and what is counted: `1 agent`, `1,200 agents`."""
    return f"{count:,} {plural(count, noun)}"


def plural(count: int, noun: str, several: str | None = None) -> str:
    """Return the noun for so many; `several` where an s behind it is not enough."""
    if count == 1:
        return noun
    return f"{noun}s" if several is None else several
