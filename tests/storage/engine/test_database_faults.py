import pytest

from lifesign.storage.engine.database_faults import translated
from lifesign.storage.errors import StoreUnavailable


@pytest.mark.parametrize(
    ("error", "has_hint"), [(ConnectionRefusedError(), True), (TimeoutError(), False), (OSError(), False)]
)
def test_refused_connection_has_a_hint(error: OSError, *, has_hint: bool) -> None:
    with pytest.raises(StoreUnavailable) as caught, translated():
        raise error
    assert ("PostgreSQL" in caught.value.hint) == has_hint
    assert type(error).__name__ in str(caught.value)
