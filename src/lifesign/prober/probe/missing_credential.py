"""Answers that require a credential of another prober: they are inconclusive."""

from collections.abc import Mapping

from lifesign.domain.credentials.missing_credentials import OtherCredential
from lifesign.domain.observation.results import REFUSED_LOGIN, LayerResult, ResultClass
from lifesign.prober.probe.session import ProbeSession


def without_refused(
    visit: ProbeSession, layers: Mapping[str, LayerResult | None]
) -> tuple[dict[str, LayerResult | None], str | None]:
    """Return the layers with those refused for lack of a credential as `not_measured`, and the reason."""
    changed = dict(layers)
    first: str | None = None
    for name, layer in layers.items():
        if layer is None or layer.result not in REFUSED_LOGIN:
            continue
        fetched = visit.fetched_for(layer)
        missing = None if fetched is None else visit.credentials.working_elsewhere(str(fetched.url))
        if missing is not None:
            why = missing_text(missing)
            first = first or why
            changed[name] = visit.changed(layer, ResultClass.NOT_MEASURED, why)
    return changed, first


def missing_text(missing: OtherCredential) -> str:
    """Return in words which credential this prober lacks."""
    return f"no credential: prober {missing.holder} has the credential {missing.scope.name}"
