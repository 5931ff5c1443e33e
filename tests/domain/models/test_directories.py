from lifesign.domain.models.directories import MAX_PAGE_BYTES, MAX_PAGE_URLS, ImportPageRequest
from lifesign.domain.net.allowed_addresses import MAX_URL_CHARACTERS
from lifesign.domain.observation.results import MAX_ETAG_CHARS
from lifesign.domain.targets.target import StatedKind


def test_page_of_the_longest_urls_has_fewer_bytes_than_the_registry_reads() -> None:
    url = "https://agent.example/".ljust(MAX_URL_CHARACTERS, "a")
    body = ImportPageRequest(
        urls=[url] * MAX_PAGE_URLS, kind=StatedKind.DISPUTED, source=url, etag="e" * MAX_ETAG_CHARS
    )
    assert len(body.model_dump_json().encode()) <= MAX_PAGE_BYTES
