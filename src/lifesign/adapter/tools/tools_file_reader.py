"""Reading a tools file, with faults reported by line."""

import logging
import os
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path

from pydantic import ValidationError

from lifesign.adapter.errors import CommandFailed, InvalidTools
from lifesign.adapter.process.program import program_called
from lifesign.adapter.tools.tools_file import FORMS, ToolSecret, Upstreams
from lifesign.client.secret_file import find_secret, systemd_file, without_file
from lifesign.domain.credentials.secret import MAX_SECRET_CHARS
from lifesign.domain.credentials.secret_place import env_text
from lifesign.domain.errors import FileFault
from lifesign.domain.files.yaml_document import MAX_FILE_BYTES, YamlDocument
from lifesign.errors import InvalidValue
from lifesign.filesystem.changeable_path import path_weakness
from lifesign.mcp.task_tools import TASK_TOOLS

_log = logging.getLogger("lifesign.adapter.tools")


def read_upstreams(path: Path, environment: Mapping[str, str] = os.environ) -> Upstreams:
    """Read a tools file; paths in the result are resolved relative to the file.

    InvalidTools has all faults with their lines, including missing secrets and programs; InvalidValue: there
    is no such file.
    """
    try:
        with path.open("rb") as opened:
            status = os.fstat(opened.fileno())
            raw = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidValue("tools", str(path), f"a readable file ({error.strerror})") from None
    directory = path.absolute().parent
    refuse = partial(InvalidTools, file=str(path))
    text = raw.decode("utf-8-sig", "surrogateescape")
    document = YamlDocument(text, expected="expected a mapping with the key upstreams", refuse=refuse)
    try:
        read = Upstreams.model_validate(document.to_dict(), context={"directory": directory})
    except ValidationError as error:
        raise document.misread(error, Upstreams, forms=FORMS) from None
    placed = _placed(read, directory)
    faults = [
        *_secret_faults(document, placed, environment),
        *_program_faults(document, placed),
        *_name_faults(document, placed),
    ]
    if faults:
        raise refuse(faults)
    if (weakness := path_weakness(path, status)) is not None:
        reason = f"says what is started and where secrets are sent ({weakness.reason})"
        _warn(f"other users can change {path}, which {reason}: {weakness.remedy}")
    return placed


def secret_of(source: ToolSecret, environment: Mapping[str, str] = os.environ) -> str:
    """Read a secret and put its prefix before it; InvalidValue, which does not show it, if that fails."""
    if source.env is not None:
        secret = environment.get(source.env, "")
        if not secret:
            raise InvalidValue("env", None, f"{env_text(source.env)} to be set")
    elif source.systemd is not None:
        secret = _secret_in(systemd_file(source.systemd, "systemd", environment), "systemd")
    else:
        secret = _secret_in(source.file or Path(), "file")
    if not secret.isascii() or not secret.isprintable():
        raise InvalidValue("secret", None, "visible ASCII characters on one line (not shown)")
    whole = source.prefix + secret
    if len(whole) > MAX_SECRET_CHARS:
        # It could not be removed from what the server writes.
        raise InvalidValue("secret", None, f"at most {MAX_SECRET_CHARS} characters (not shown)")
    return whole


def _secret_in(file: Path, member: str) -> str:
    secret = find_secret(file, member, "secret", _warn)
    if secret is None:
        raise without_file(file, member)
    if not secret:
        raise InvalidValue(member, str(file), "a file that is not empty")
    return secret


@cache
def _warn(complaint: str) -> None:
    """Log the message once, also if a server is started several times."""
    _log.warning("%s", complaint)


def _placed(read: Upstreams, directory: Path) -> Upstreams:
    """Return the same file with absolute paths."""
    upstreams = {
        name: upstream.model_copy(update={"directory": directory / (upstream.directory or "")})
        for name, upstream in read.upstreams.items()
    }
    return read.model_copy(update={"upstreams": upstreams})


def _secret_faults(
    document: YamlDocument, read: Upstreams, environment: Mapping[str, str]
) -> Iterator[FileFault]:
    for name, upstream in read.upstreams.items():
        for member, given in (("environment", upstream.environment), ("headers", upstream.headers)):
            for key, source in given.items():
                try:
                    secret_of(source, environment)
                except InvalidValue as error:
                    place = ("upstreams", name, member, key, error.name)
                    got = "" if error.given is None else f"; got {error.given}"
                    yield from document.refused(place, f"expected {error.expected}{got}").faults


def _program_faults(document: YamlDocument, read: Upstreams) -> Iterator[FileFault]:
    """Return the programs that do not exist, as far as this is known before they are started."""
    for name, upstream in read.upstreams.items():
        # If a server gets its own PATH, only its start shows whether the command exists.
        if upstream.command is None or "PATH" in upstream.environment:
            continue
        program = upstream.command[0]
        # One with a slash is looked for in the directory in which it is started.
        place = str((upstream.directory or Path.cwd()) / program) if os.sep in program else program
        try:
            program_called(place)
        except CommandFailed as error:
            why = f" ({error.reason})" if error.reason else ""
            expected = f"expected a program that can be started: {program}{why}"
            yield from document.refused(("upstreams", name, "command", 0), expected).faults


def _name_faults(document: YamlDocument, read: Upstreams) -> Iterator[FileFault]:
    """Return which tools cannot be offered under any of their names."""
    taken = {tool.name for tool in TASK_TOOLS}
    for upstream, tool in read.named():
        names = read.names_for(upstream, tool)
        free = next((name for name in names if name not in taken), None)
        if free is None:
            place = ("upstreams", upstream, "tools", tool)
            expected = f"expected a name that is free: {' and '.join(names)} are taken; a prefix helps"
            yield from document.refused(place, expected).faults
        else:
            taken.add(free)
