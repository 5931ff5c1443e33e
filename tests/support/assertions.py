"""Results of assertions."""

from lifesign.domain.observation.assertion import AssertionOutcome, AssertionResult, Check


def asserted(result: str, check: str = "text_contains", of: str = "message") -> AssertionResult:
    """A result of an assertion that expects OK."""
    actual = {"ok": "OK", "assertion_failed": "no idea"}.get(result)
    return AssertionResult(
        of=of, check=Check(check), result=AssertionOutcome(result), expected="OK", actual=actual
    )
