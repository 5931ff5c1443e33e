"""A directory whose content a test sets."""

from collections.abc import Sequence
from typing import Any

from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Role

DIRECTORIES = "/api/v1/directories"
SHARDS = "/api/v1/shards"


async def upload(
    api: RegistryApi, name: str, import_id: str, *pages: Sequence[str], **members: object
) -> dict[str, Any]:
    """Send the pages of a list, and return the record of the import as it is then."""
    record: dict[str, Any] = {}
    for number, urls in enumerate(pages, 1):
        path = f"{DIRECTORIES}/{name}/imports/{import_id}/pages/{number}"
        answer = await api.ask("PUT", path, {"urls": list(urls), **members}, key=Role.PROBER)
        assert answer.status == 200, answer.body
        record = answer.json()
    return record


async def apply(api: RegistryApi, name: str, import_id: str, pages: int) -> dict[str, Any]:
    """Apply an import until there is nothing left to do, and return its record."""
    while True:
        path = f"{DIRECTORIES}/{name}/imports/{import_id}/apply"
        answer = await api.ask("POST", path, {"pages": pages}, key=Role.PROBER)
        assert answer.status == 200, answer.body
        record: dict[str, Any] = answer.json()
        if record["state"] not in {"adding", "removing"}:
            return record


async def put(
    api: RegistryApi, name: str, import_id: str, *pages: Sequence[str], **members: object
) -> dict[str, Any]:
    """Let a directory list this, and return the record of the import."""
    await upload(api, name, import_id, *pages, **members)
    return await apply(api, name, import_id, len(pages))


async def claim(
    api: RegistryApi,
    worker: str = "w",
    held: dict[int, int] | None = None,
    ttl_seconds: float = 60.0,
    **members: object,
) -> dict[int, int]:
    """Claim shards, and return those that the worker holds, each with its token."""
    body = {
        "worker": worker,
        "ttl_seconds": ttl_seconds,
        "held": {str(shard): token for shard, token in (held or {}).items()},
        **members,
    }
    answer = await api.ask("POST", f"{SHARDS}/claim", body, key=Role.PROBER)
    assert answer.status == 200, answer.body
    tokens = {shard["shard"]: shard["fencing_token"] for shard in answer.json()["shards"]}
    api.hold(tokens, ttl_seconds)
    return tokens


async def feed(api: RegistryApi, shard: int, after: int | None = None, limit: int = 5_000) -> dict[str, Any]:
    """Return the targets of a shard, all pages together; or the changes in it."""
    query = f"limit={limit}" + ("" if after is None else f"&after_version={after}")
    path = f"{SHARDS}/{shard}/targets?{query}"
    whole: dict[str, Any] = {"targets": [], "gone": []}
    cursor = ""
    while True:
        answer = await api.ask("GET", path + cursor, key=Role.PROBER)
        assert answer.status == 200, answer.body
        page = answer.json()
        for name in ("targets", "gone"):
            whole[name] += page[name]
        whole["version"] = page["version"]
        if "cursor" not in page:
            return whole
        cursor = f"&cursor={page['cursor']}"


async def urls_in(api: RegistryApi, *shards: int) -> list[str]:
    """Return the URLs that shards hold, in their order."""
    return sorted([target["url"] for shard in shards for target in (await feed(api, shard))["targets"]])
