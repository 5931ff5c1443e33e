"""Reading a probe definition from its file, with faults reported by line."""

import os
import re
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails

from lifesign.domain.errors import FileFault
from lifesign.domain.files.yaml_document import MAX_FILE_BYTES, YamlDocument
from lifesign.domain.files.yaml_document import Path as YamlPath
from lifesign.domain.targets.target import read_target
from lifesign.errors import InvalidValue
from lifesign.filesystem.changeable_path import path_weakness
from lifesign.prober.definition.credentials import CREDENTIAL_FORMS, Credentials, CredentialSettings
from lifesign.prober.definition.layer_settings import DefinitionMapping
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.definition.values import FORMS
from lifesign.prober.errors import InvalidDefinition

_URL: Final = re.compile("[a-z][a-z0-9+.-]*:/", re.IGNORECASE)
"""Beginning of a URL; as a path it has one slash."""
_NO_FILE: Final = "no regular file"


class CredentialFile(DefinitionMapping):
    """Content of a file that contains only credentials."""

    credentials: Annotated[Credentials, Field(min_length=1)]
    """The same as in a definition."""


def read_definition_file(file: Path, *, needs_trust: bool = False) -> ProbeDefinition:
    """Read a probe definition. Paths in it are relative to the directory of the file.

    A definition that names secrets is refused if other users can change it; with `needs_trust` any is, since
    credentials of another file are used with it.

    Raise InvalidDefinition with all faults and their lines. A directory or opt-out list that cannot be read
    is a fault too, as is a key file that is no regular file. Raise InvalidValue if the definition file does
    not exist.
    """
    text, opened = _text_of(file, "definition")
    document, definition = _read(text, file)
    if (
        needs_trust
        or definition.credentials
        or any(key_file is not None for _, key_file in _key_files(definition))
    ):
        _refuse_changeable(file, opened, "definition")
    finders = (_list_faults, _opt_out_faults, _key_faults)
    if faults := [fault for find in finders for fault in find(document, definition)]:
        raise InvalidDefinition(faults, file=str(file))
    return definition


def read_credential_file(file: Path) -> tuple[CredentialSettings, ...]:
    """Read a file that has only the key `credentials`, in the form of a definition.

    Raise InvalidDefinition and InvalidValue as `read_definition_file` does, with the name of the option.
    """
    text, opened = _text_of(file, "--credential")
    refuse = partial(InvalidDefinition, file=str(file))
    document = YamlDocument(
        text, expected="expected a mapping with the key credentials", refuse=refuse, secrets="credentials"
    )
    content = document.to_dict()
    if not content.keys().isdisjoint({"name", "targets", "directories"}):
        expected = "a file that has only the key credentials"
        raise InvalidValue("--credential", str(file), expected, hint="pass a definition as --definition")
    try:
        read = CredentialFile.model_validate(content, context={"directory": file.parent})
    except ValidationError as error:
        raise document.misread(error, CredentialFile, forms={**FORMS, **CREDENTIAL_FORMS}) from None
    _refuse_changeable(file, opened, "--credential")
    return read.credentials


def _refuse_changeable(file: Path, opened: os.stat_result, setting: str) -> None:
    """Refuse a file in which other users can change where secrets are sent."""
    if (weakness := path_weakness(file, opened)) is not None:
        expected = f"a file that others cannot change: it says where secrets are sent ({weakness.reason})"
        raise InvalidValue(setting, str(file), expected, hint=weakness.remedy)


def _text_of(file: Path, setting: str) -> tuple[str, os.stat_result]:
    """Return the text of a file and its status; half a character is left for the line that refuses it."""
    try:
        with file.open("rb") as opened:
            status = os.fstat(opened.fileno())
            raw = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        if _URL.match(str(file)):
            # Its user, path and query may be secrets.
            raise InvalidValue(setting, None, "a file, not a URL") from None
        raise InvalidValue(setting, str(file), f"a readable file ({error.strerror})") from None
    return raw.decode("utf-8-sig", "surrogateescape"), status


def _read(text: str, file: Path) -> tuple[YamlDocument, ProbeDefinition]:
    refuse = partial(InvalidDefinition, file=str(file))
    document = YamlDocument(
        text, expected="expected a mapping with the key name", refuse=refuse, secrets="credentials"
    )
    content = document.to_dict()
    try:
        read = ProbeDefinition.model_validate(content, context={"directory": file.parent})
    except ValidationError as error:
        forms = {**FORMS, **CREDENTIAL_FORMS}
        place = partial(_place_of, content.get("targets"))
        raise document.misread(error, ProbeDefinition, forms=forms, place=place) from None
    return document, read


def _place_of(targets: object, details: ErrorDetails) -> YamlPath:
    """Return the path to a fault. Rules for several members do not know where they are in the file."""
    if details["type"] == "call_of_all":
        return "ask", "call"
    url = details.get("ctx", {}).get("url")
    listed = targets if isinstance(targets, list) else []
    places = [place for place, each in enumerate(listed) if isinstance(each, dict) and _url_of(each) == url]
    # A URL may be listed again without settings, and twice with different ones.
    return ("targets", places[-1]) if url is not None and places else details["loc"]


def _url_of(target: dict[str, Any]) -> object:
    url = target.get("url")
    return read_target(url) if isinstance(url, str) else None


def _list_faults(document: YamlDocument, definition: ProbeDefinition) -> Iterator[FileFault]:
    """Return the directory files that cannot be opened: a crawl would wait for them forever."""
    for place, source in enumerate(definition.directories):
        if source.file is not None and (why := unreadable(source.file)):
            expected = f"expected a list that can be read: {source.file} ({why})"
            yield from document.refused(("directories", place, "file"), expected).faults


def unreadable(file: Path) -> str:
    """Return why a file cannot be read; empty if it can."""
    try:
        # Opening a pipe would block until another process writes to it.
        if not stat.S_ISREG(file.stat().st_mode):
            return _NO_FILE
        file.open("rb").close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _opt_out_faults(document: YamlDocument, definition: ProbeDefinition) -> Iterator[FileFault]:
    """Return the opt-out files that cannot be opened: no target is probed before they are read."""
    for place, name in enumerate(definition.opt_out.files):
        if why := unreadable(name):
            expected = f"expected a file that can be read: {name} ({why})"
            yield from document.refused(("opt_out", "files", place), expected).faults


def _key_faults(document: YamlDocument, definition: ProbeDefinition) -> Iterator[FileFault]:
    """Return the key files that cannot be used. A missing one is reported when the key is needed."""
    for place, file in _key_files(definition):
        if file is not None and file.exists() and not file.is_file():
            expected = f"expected the file of a key: {file} ({_NO_FILE})"
            yield from document.refused(place, expected).faults


def _key_files(definition: ProbeDefinition) -> Iterator[tuple[YamlPath, Path | None]]:
    """Yield where a definition can name the file of a key, with the file if it does."""
    for place, source in enumerate(definition.directories):
        yield ("directories", place, "key_file"), source.key_file
    yield ("results", "key_file"), definition.results.key_file
