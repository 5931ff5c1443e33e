"""The option `--json`, which every command has that prints data."""

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
"""One JSON document on standard output. Commands with continuous output write one object per line."""
