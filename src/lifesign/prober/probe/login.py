"""Login that a target asks for: its challenge, the card's security schemes and its OAuth metadata.

The metadata is requested without a credential, from the origin that refused the request and no other one.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from yarl import URL

from lifesign.client.candidate_urls import place_under
from lifesign.domain.credentials.challenge import WITH_METADATA, Challenge, read_challenges
from lifesign.domain.credentials.request_scope import Purpose
from lifesign.domain.observation.login import (
    MAX_METADATA_BYTES,
    MAX_ORIGIN_CHARS,
    METADATA_PATH,
    Login,
    MetadataResult,
    OAuthMetadata,
    login_of,
    read_metadata,
)
from lifesign.domain.observation.results import REFUSED_LOGIN, Observation, ResultClass
from lifesign.domain.observation.served_body import is_absent
from lifesign.http_client.redirects import is_same_origin, resolve_url
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.probe.session import ProbeSession

UNAUTHORIZED: Final = 401


async def read_login(visit: ProbeSession, observation: Observation, card_every_s: float) -> Login | None:
    """Return how to authenticate at a target that refused a request; None if it refused none.

    The metadata is read once in `card_every_s`, and remembered in between.
    """
    fetched = visit.refusal
    if fetched is None or not any(observation.layers_with(result) for result in REFUSED_LOGIN):
        return None
    challenges = read_challenges(fetched.challenges)
    with_metadata = [each for each in challenges if each.scheme in WITH_METADATA]
    metadata = None
    if with_metadata and fetched.status == UNAUTHORIZED and visit.is_authoritative(str(fetched.url)):
        metadata = await _metadata(visit, fetched, with_metadata, card_every_s)
    is_own = is_same_origin(fetched.url, visit.given.url)
    origin = None if is_own else str(fetched.url.origin())[:MAX_ORIGIN_CHARS]
    # Each part is searched for the secrets that its own sender receives, when it arrives.
    return login_of(fetched.challenges, visit.recall("card_schemes") or (), metadata, origin=origin)


async def _metadata(
    visit: ProbeSession, fetched: Fetched, challenges: Sequence[Challenge], card_every_s: float
) -> OAuthMetadata | None:
    read_at_s: float | None = visit.recall("oauth_metadata_at_s")
    known: OAuthMetadata | None = visit.recall("oauth_metadata")
    is_current = read_at_s is not None and 0 <= visit.at_s - read_at_s < card_every_s
    if is_current or visit.entry.is_repeat:
        return known
    # A secret in the path must not get into that of the metadata, which another server may answer.
    has_secret = fetched.scrubber.is_quoted_in(str(fetched.url))
    url = fetched.url.origin() if has_secret else fetched.url
    places = [visit.unless_secret(place, fetched) for place in _places(url, challenges)]
    found = await _read(visit, url, places)
    if found is None:
        # No answer says anything: neither that there is metadata, nor that there is none.
        return known
    visit.learned |= {"oauth_metadata": found, "oauth_metadata_at_s": visit.at_s}
    return found


async def _read(visit: ProbeSession, url: URL, places: Sequence[URL]) -> OAuthMetadata | None:
    """Return the metadata of the first place that has any; None if a place gave no usable answer."""
    resources = [str(url.with_query(None)), str(url.origin()), str(visit.given.url)]
    for place in places:
        fetched = await visit.ask(place, max_bytes=MAX_METADATA_BYTES, is_aside=True, purpose=Purpose.OTHER)
        if fetched is None:
            return None
        if fetched.result is ResultClass.OK and fetched.is_json:
            found = read_metadata(fetched.body, resources)
            return found or OAuthMetadata(result=MetadataResult.INVALID, reason="not a JSON object")
        if fetched.result is not ResultClass.OK and not is_absent(fetched.result, fetched.status):
            return None
    return OAuthMetadata(result=MetadataResult.MISSING)


def _places(url: URL, challenges: Sequence[Challenge]) -> Iterator[URL]:
    """Yield where the metadata may be: the place in the challenge, else the well-known ones."""
    for challenge in challenges:
        named = challenge.parameters.get("resource_metadata")
        place = None if named is None else resolve_url(url, named)
        if place is not None and is_same_origin(place, url) and place.raw_user is None:
            yield place
            return
    path = url.raw_path.rstrip("/")
    if path:
        yield place_under(url, "", METADATA_PATH + path)
    yield place_under(url, "", METADATA_PATH)
