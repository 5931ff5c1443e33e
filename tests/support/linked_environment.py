"""Environment variables for the workers of `linked_app`."""

from pathlib import Path

from lifesign.client.environment_variables import KEY_VARIABLE, URL_VARIABLE

AGENT_ID = "linked-1"


def linked_environment(url: str, key: str, directory: Path) -> dict[str, str]:
    """Return the variables that `linked_app` reads; the agent's own key is kept as `linked.key`."""
    return {
        URL_VARIABLE: url,
        KEY_VARIABLE: key,
        "LINKED_KEY_FILE": str(directory / "linked.key"),
        "LINKED_LOCK_DIR": str(directory / "crew"),
    }
