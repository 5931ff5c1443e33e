"""Reading the error messages of commands."""


def problems_in(errors: str) -> list[str]:
    """Return the lines about problems, without those that are hints."""
    return [line for line in errors.splitlines() if not line.startswith("hint: ")]
