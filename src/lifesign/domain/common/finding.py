"""Findings: unusual or wrong properties of what a peer sent."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem or remark about a document or a card, with its place there.

    The reader that returns a finding decides whether it refuses the whole document (a fault) or is only
    reported.
    """

    name: str
    """Stable snake_case name that programs may compare, such as `ratios_do_not_add_up`."""
    pointer: str
    """JSON pointer (RFC 6901) to the place; the empty string is the whole document."""
    message: str
    """Finding and expected value, for people."""
    section: str = ""
    """The section of the source that it offends, such as `draft 4.2`; empty if none does."""

    def __str__(self) -> str:
        place = self.pointer or "(whole document)"
        source = f" [{self.section}]" if self.section else ""
        return f"{place}: {self.message}{source}"


def json_pointer(*parts: str | int) -> str:
    """Return the JSON pointer (RFC 6901) for a path of `parts` from the root."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)
