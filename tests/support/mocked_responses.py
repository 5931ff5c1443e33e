"""Errors of the HTTP library that no peer on loopback can cause."""

from typing import Any
from unittest.mock import Mock

import aiohttp


class MockedResponse(aiohttp.ClientResponse):
    """A response that aioresponses can make (aiohttp >= 3.14)."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **({"stream_writer": Mock(output_size=0)} | settings))
