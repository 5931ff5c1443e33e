"""Constants about the project itself."""

from typing import Final

PROJECT_URL: Final[str] = ""
"""The project's page, for the User-Agent of requests that name no contact; empty until the project has one.

While it is empty, crawls and censuses of public addresses require `contact`.
"""


def project_suffix(contact: str | None = None) -> str:
    """Return the comment of a User-Agent, with a space before it: the contact, else the project's page.

    Empty if there is neither.
    """
    about = contact or PROJECT_URL
    return f" (+{about})" if about else ""
