"""Renews a lease at once although it is valid for long.

A short lease would be lost on a machine that stalls for a moment.
"""

import pytest

from lifesign.domain.tasks import lease_renewal

LONG_SECONDS = 300.0
"""Slow tests do not lose such a lease."""
_SOON_SECONDS = 0.5


def renew_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew leases of `LONG_SECONDS` twice a second."""
    monkeypatch.setattr(lease_renewal, "RENEW_RATIO", _SOON_SECONDS / LONG_SECONDS)
    monkeypatch.setattr(lease_renewal, "SPREAD_RATIO", 0.0)
