"""Reads probe definitions that a test has as text."""

from pathlib import Path
from tempfile import TemporaryDirectory

from lifesign.prober.definition.file import read_definition_file
from lifesign.prober.definition.models import ProbeDefinition


def definition_of(text: str, file: Path | None = None) -> ProbeDefinition:
    """Write a definition into `file`, or into one that is deleted afterwards, and read it from there."""
    if file is not None:
        file.write_text(text)
        return read_definition_file(file)
    with TemporaryDirectory() as directory:
        written = Path(directory) / "x.yml"
        written.write_bytes(text.encode(errors="surrogatepass"))
        return read_definition_file(written)
