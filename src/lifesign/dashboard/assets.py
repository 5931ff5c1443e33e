"""Static files: style, script and pictures.

They are the package's own files, under names that contain their digest: a browser caches them for a year
without asking again, and a new version has a new name.
"""

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from types import MappingProxyType
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

PATH: Final = "/static/{name}"
MEDIA_TYPES: Final[Mapping[str, str]] = MappingProxyType({
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
})  # fmt: skip
_FOREVER: Final = {
    "Cache-Control": "public, max-age=31536000, immutable",
    "X-Content-Type-Options": "nosniff",
}
_DIGEST_CHARACTERS: Final = 16


@cache
def _files() -> tuple[Mapping[str, str], Mapping[str, bytes]]:
    """Return the URL of each file, by its own name; and the content, by name with digest."""
    names: dict[str, str] = {}
    contents: dict[str, bytes] = {}
    for file in files("lifesign.dashboard").joinpath("static").iterdir():
        stem, _, kind = file.name.rpartition(".")
        if kind not in MEDIA_TYPES:
            continue
        content = file.read_bytes()
        served = f"{stem}.{sha256(content).hexdigest()[:_DIGEST_CHARACTERS]}.{kind}"
        names[file.name], contents[served] = f"/static/{served}", content
    return names, contents


def asset_path(name: str) -> str:
    """Return the URL of an asset."""
    return _files()[0][name]


async def serve_asset(request: Request) -> Response:
    """Return a static file of the dashboard."""
    name = request.path_params["name"]
    content = _files()[1].get(name)
    if content is None:
        raise HTTPException(404)
    return Response(content, headers=_FOREVER, media_type=MEDIA_TYPES[name.rpartition(".")[2]])
