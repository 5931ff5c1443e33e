"""How does a test see a lease renewed at once that is good for long all the same?

Of a short one a machine that stands still for a moment would make a lost one.
"""

import pytest

from lifesign.domain.tasks import lease_renewal

LONG_SECONDS = 300.0
"""Nobody loses such a lease by being slow."""
_SOON_SECONDS = 0.5


def renew_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew leases of `LONG_SECONDS` twice a second."""
    monkeypatch.setattr(lease_renewal, "RENEW_RATIO", _SOON_SECONDS / LONG_SECONDS)
    monkeypatch.setattr(lease_renewal, "SPREAD_RATIO", 0.0)
