"""Every error that lifesign raises on purpose."""


class LifesignError(Exception):
    """Base class of all errors that lifesign raises on purpose."""

    hint: str = ""
    """What to do, in one line; empty if the message says it. The command line and the API show it."""


class NoAnswer(LifesignError):
    """A server or a database could not be reached, or did not answer."""


class InvalidValue(LifesignError, ValueError):
    """A caller's argument or setting is wrong. `name` names it, `expected` says what is valid.

    `given` is None if no value was given, or if the value must not be shown.
    """

    def __init__(self, name: str, given: object, expected: str, *, hint: str = "") -> None:
        got = "" if given is None else f"; got {given!r}"
        super().__init__(f"{name}: expected {expected}{got}")
        self.name = name
        self.given = given
        self.expected = expected
        self.hint = hint
