"""How is a probe definition read from its file, and what is wrong with it, on which line?"""

from functools import partial
from pathlib import Path

from pydantic import ValidationError

from agent_health.errors import InvalidDefinition, InvalidSetting
from agent_health.prober.definition import ProbeDefinition
from agent_health.prober.definition_values import FORMS
from agent_health.yaml_document import MAX_FILE_BYTES, YamlDocument


def read_definition_file(file: Path) -> ProbeDefinition:
    """Read a definition; the paths in it lead from the directory in which it stands.

    InvalidDefinition says all that is wrong, and where; InvalidSetting, that there is no such file.
    """
    try:
        with file.open("rb") as opened:
            raw = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidSetting("definition", str(file), f"a readable file ({error.strerror})") from None
    # Half a character is refused on its line.
    return read_definition(raw.decode("utf-8-sig", "surrogateescape"), file=file)


def read_definition(text: str, *, file: Path) -> ProbeDefinition:
    """Read the text of a definition that stands, or would stand, in `file`; InvalidDefinition."""
    refuse = partial(InvalidDefinition, file=str(file))
    document = YamlDocument(text, expected="expected a mapping with the key name", refuse=refuse)
    try:
        return ProbeDefinition.model_validate(document.whole(), context={"directory": file.parent})
    except ValidationError as error:
        raise document.misread(error, ProbeDefinition, forms=FORMS) from None
