"""Commands about keys; they use the database itself, since the first admin has no other access."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lifesign.cli.options.duration import duration_option, in_durations
from lifesign.cli.options.json_option import AsJson
from lifesign.cli.options.secret_file import WriteKey, new_key_file
from lifesign.cli.options.server_database import (
    ACTOR,
    DEFAULT_DATABASE,
    DatabaseUrl,
    ServerConfig,
    run_in_transaction,
)
from lifesign.cli.options.shell_completion import offering
from lifesign.cli.output.table import write_json, write_table
from lifesign.domain.net.peer_text import printable
from lifesign.domain.text.counts import pluralize
from lifesign.errors import InvalidValue

if TYPE_CHECKING:
    from lifesign.domain.access.permissions import Role, StoredKey
    from lifesign.registry.keys.manage_keys import KeyLimits, KeyRotation, NewKey
    from lifesign.storage.engine.transaction import Transaction

PAGE = 1_000
"""Number of keys per transaction."""

_CONTEXT = {"help_option_names": ["-h", "--help"]}
keys = typer.Typer(
    name="keys",
    help="Create, list, rotate, confirm and revoke keys, directly in the database.",
    rich_markup_mode=None,
    no_args_is_help=True,
)

KeyId = Annotated[
    str, typer.Argument(metavar="KEY_ID", help="Id of the key, as `keys list` shows it; not the key itself.")
]


def _roles(incomplete: str) -> list[str]:
    """Return the roles that a shell may offer."""
    from lifesign.domain.access.permissions import Role  # noqa: PLC0415 - asked by a shell alone

    return offering(*Role)(incomplete)


@keys.command(context_settings=_CONTEXT)
def create(
    *,
    role: Annotated[
        str,
        typer.Option(
            metavar="ROLE",
            autocompletion=_roles,
            help="Role: enroll, agent, reader, prober, coordinator or admin.",
        ),
    ],
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the key, for people: its owner and purpose.")
    ],
    agent_id: Annotated[
        str | None,
        typer.Option(metavar="AGENT_ID", help="Agent to which the key belongs; required for the role agent."),
    ] = None,
    expires_in: Annotated[
        float | None,
        duration_option("--expires-in", help="Lifetime, such as 12h or 30d. Without it: unlimited."),
    ] = None,
    max_workers: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT",
            help=(
                "Maximum number of workers that may probe with a prober's key at a time. Without it: "
                "the server's --prober-workers, by default 16."
            ),
        ),
    ] = None,
    write_key: WriteKey = None,
    _config: ServerConfig = None,
    database: DatabaseUrl = DEFAULT_DATABASE,
    as_json: AsJson = False,
) -> int:
    """Create a key and print it: the key is shown only once, and not stored.

    An empty database is set up first. Only the key goes to standard output.

    \b
    Examples:
      lifesign keys create --role admin --name alice
      lifesign keys create --role enroll --name fleet --expires-in 30d --write-key enroll.key
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    from lifesign.registry.keys.manage_keys import NewKey  # noqa: PLC0415 - pydantic takes 60 ms

    new = _checked(
        NewKey,
        role=role,
        name=name,
        agent_id=agent_id,
        expires_in_seconds=expires_in,
        max_workers=max_workers,
    )
    with new_key_file(write_key) as keep:
        stored, key = run_in_transaction(database, partial(_create, new=new), must_exist=False)
        _show_new(stored, key, write_key, keep, as_json=as_json)
    return 0


@keys.command("list", context_settings=_CONTEXT)
def list_keys(
    *,
    role: Annotated[
        str | None, typer.Option(metavar="ROLE", autocompletion=_roles, help="Only keys of this role.")
    ] = None,
    _config: ServerConfig = None,
    database: DatabaseUrl = DEFAULT_DATABASE,
    as_json: AsJson = False,
) -> int:
    """List all keys by id, the oldest first. The list cannot show a key itself, which is not stored.

    WORKERS is the maximum number of workers of a prober's key; `default` is the server's --prober-workers.

    \b
    Examples:
      lifesign keys list --role admin
      lifesign keys list --json | jq -r '.keys[] | select(.is_valid) | .key_id'
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    found = list(_all(database, _role(role)))
    if as_json:
        write_json(sys.stdout, {"keys": found})
    else:
        rows = [
            (
                key["key_id"],
                key["role"],
                key["agent_id"] or "",
                _workers(key),
                _ending(key),
                key["name"],
            )
            for key in found
        ]
        write_table(sys.stdout, ("KEY_ID", "ROLE", "AGENT", "WORKERS", "VALID", "NAME"), rows)
    return 0


@keys.command(context_settings=_CONTEXT)
def rotate(
    key_id: KeyId,
    *,
    overlap: Annotated[
        float | None,
        duration_option("--overlap", help="Time for which the old key stays valid. Without it: 1h."),
    ] = None,
    expires_in: Annotated[
        float | None,
        duration_option("--expires-in", help="Lifetime of the new key. Without it: that of the old key."),
    ] = None,
    write_key: WriteKey = None,
    _config: ServerConfig = None,
    database: DatabaseUrl = DEFAULT_DATABASE,
    as_json: AsJson = False,
) -> int:
    """Replace a key by a new one, which is shown only once. The old key stays valid for --overlap.

    \b
    Examples:
      lifesign keys rotate key_01hv... --overlap 1d
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    from lifesign.registry.keys.manage_keys import KeyRotation  # noqa: PLC0415 - pydantic takes 60 ms

    rotation = _checked(KeyRotation, overlap_seconds=overlap, expires_in_seconds=expires_in)
    with new_key_file(write_key) as keep:
        stored, key = run_in_transaction(database, partial(_rotate, key_id=key_id, rotation=rotation))
        _show_new(stored, key, write_key, keep, as_json=as_json)
    return 0


@keys.command(context_settings=_CONTEXT)
def limit(
    key_id: KeyId,
    *,
    max_workers: Annotated[
        int,
        typer.Option(
            metavar="COUNT", help="Maximum number of workers that may probe with a prober's key at a time."
        ),
    ],
    _config: ServerConfig = None,
    database: DatabaseUrl = DEFAULT_DATABASE,
    as_json: AsJson = False,
) -> int:
    """Change how many workers may probe with a prober's key at a time. Running workers continue.

    \b
    Examples:
      lifesign keys limit key_01hv... --max-workers 32
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    from lifesign.registry.keys.manage_keys import KeyLimits  # noqa: PLC0415 - pydantic takes 60 ms

    limits = _checked(KeyLimits, max_workers=max_workers)
    record = run_in_transaction(database, partial(_limit, key_id=key_id, limits=limits))
    if as_json:
        write_json(sys.stdout, record)
    else:
        sys.stdout.write(printable(f"{key_id} may have {pluralize(max_workers, 'worker')}") + "\n")
    return 0


@keys.command(context_settings=_CONTEXT)
def confirm(
    key_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY_ID...", help="Ids of the keys, as `keys list` shows them."),
    ] = None,
    *,
    is_all: Annotated[bool, typer.Option("--all", help="Confirm all suspended keys.")] = False,
    role: Annotated[
        str | None,
        typer.Option(metavar="ROLE", autocompletion=_roles, help="With --all: only keys of this role."),
    ] = None,
    _config: ServerConfig = None,
    database: DatabaseUrl = DEFAULT_DATABASE,
    as_json: AsJson = False,
) -> int:
    """Accept keys again that `lifesign restore` has suspended.

    `restore` suspends each key of the backup that the replaced database did not have: it may have been
    revoked since the backup. Revoke those keys instead of confirming them.

    \b
    Examples:
      lifesign keys confirm key_01hv...
      lifesign keys confirm --all --role agent
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    if bool(key_ids) == is_all:
        raise InvalidValue("KEY_ID", " ".join(key_ids or ()), "ids of keys, or --all")
    if role is not None and not is_all:
        raise InvalidValue("--role", role, "--all beside it")
    function = partial(_confirm, key_ids=key_ids, role=_role(role))
    confirmed = run_in_transaction(database, function)
    if as_json:
        write_json(sys.stdout, {"confirmed": confirmed})
    else:
        sys.stdout.write(f"{pluralize(len(confirmed), 'key')} confirmed\n")
    return 0


@keys.command(context_settings=_CONTEXT)
def revoke(
    key_id: KeyId,
    *,
    _config: ServerConfig = None,
    database: DatabaseUrl = DEFAULT_DATABASE,
    as_json: AsJson = False,
) -> int:
    """Revoke a key, even the last admin key: `lifesign keys create` makes a new one.

    All leases of the key and its workers end at once, including those of shards.

    \b
    Examples:
      lifesign keys revoke key_01hv...
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    run_in_transaction(database, partial(_revoke, key_id=key_id))
    if as_json:
        write_json(sys.stdout, {"key_id": key_id, "is_revoked": True})
    else:
        sys.stdout.write(printable(f"{key_id} is revoked") + "\n")
    return 0


def _create(transaction: "Transaction", new: "NewKey") -> "tuple[StoredKey, str]":
    from lifesign.registry.keys.manage_keys import create_key  # noqa: PLC0415 - see create
    from lifesign.storage.engine import schema_version  # noqa: PLC0415

    schema_version.set_up_or_check(transaction)
    return create_key(transaction, new, ACTOR)


def _rotate(transaction: "Transaction", key_id: str, rotation: "KeyRotation") -> "tuple[StoredKey, str]":
    from lifesign.registry.keys.manage_keys import rotate_key  # noqa: PLC0415 - see create
    from lifesign.storage.engine import schema_version  # noqa: PLC0415

    schema_version.check(transaction)
    return rotate_key(transaction, key_id, rotation, ACTOR)


def _limit(transaction: "Transaction", key_id: str, limits: "KeyLimits") -> dict[str, Any]:
    from lifesign.registry.keys.manage_keys import key_record, limit_key  # noqa: PLC0415 - see create
    from lifesign.storage.engine import schema_version  # noqa: PLC0415

    schema_version.check(transaction)
    key = limit_key(transaction, key_id, limits, ACTOR)
    return key_record(key, transaction.now_s).model_dump(mode="json")


def _role(name: str | None) -> "Role | None":
    from lifesign.domain.access.permissions import Role, role_hint  # noqa: PLC0415 - see create

    try:
        return None if name is None else Role(name)
    except ValueError:
        raise InvalidValue("--role", name, f"one of {', '.join(Role)}", hint=role_hint()) from None


def _confirm(transaction: "Transaction", key_ids: list[str] | None, role: "Role | None") -> list[str]:
    """Confirm these keys, or all suspended ones; return their ids."""
    from lifesign.registry.keys.manage_keys import confirm_key  # noqa: PLC0415 - see create
    from lifesign.storage.engine import schema_version  # noqa: PLC0415
    from lifesign.storage.keys import key_rows as stored_keys  # noqa: PLC0415

    schema_version.check(transaction)
    confirmed = key_ids or stored_keys.suspended(transaction, role)
    for key_id in confirmed:
        confirm_key(transaction, key_id, ACTOR)
    return confirmed


def _revoke(transaction: "Transaction", key_id: str) -> None:
    from lifesign.registry.keys.manage_keys import revoke_key  # noqa: PLC0415 - see create
    from lifesign.storage.engine import schema_version  # noqa: PLC0415

    schema_version.check(transaction)
    revoke_key(transaction, key_id, ACTOR, may_leave_no_admin=True)


def _all(database: str, role: "Role | None") -> Iterator[dict[str, Any]]:
    """Read all keys, a page at a time."""
    from lifesign.registry.keys.manage_keys import key_record  # noqa: PLC0415 - see create
    from lifesign.storage.engine import schema_version  # noqa: PLC0415
    from lifesign.storage.keys import key_rows as stored_keys  # noqa: PLC0415

    after = ""

    def page(transaction: "Transaction") -> list[dict[str, Any]]:
        schema_version.check(transaction)
        found = stored_keys.all_keys(transaction, role=role, after=after, limit=PAGE)
        return [key_record(key, transaction.now_s).model_dump(mode="json") for key in found]

    while found := run_in_transaction(database, page, is_write=False):
        yield from found
        after = found[-1]["key_id"]


def _show_new(
    stored: "StoredKey", key: str, file: Path | None, keep: Callable[[str], None] | None, *, as_json: bool
) -> None:
    """Store a key in its file, or print it as the only text on standard output."""
    if keep is not None:
        keep(key)
    if as_json:
        from lifesign.registry.keys.manage_keys import key_record  # noqa: PLC0415 - see create

        record = key_record(stored, stored.created_at_s).model_dump(mode="json")
        write_json(sys.stdout, record if keep else {"key": key, **record})
        return
    end = f"is in {file}" if keep else "store it now: it is not shown again"
    sys.stderr.write(printable(f"{stored.key_id} ({stored.role}, {stored.name}): {end}") + "\n")
    if keep is None:
        sys.stdout.write(key + "\n")


def _checked(model: Any, **members: object) -> Any:
    """Return the validated request; InvalidValue names the first invalid member."""
    from pydantic import ValidationError  # noqa: PLC0415 - takes 60 ms

    from lifesign.domain.access.permissions import role_hint  # noqa: PLC0415 - see create
    from lifesign.domain.files.validation_messages import invalid_setting  # noqa: PLC0415 - imports pydantic

    given = {name: value for name, value in members.items() if value is not None}
    try:
        return model.model_validate(given)
    except ValidationError as error:
        # A fault of several members concerns the agent of the key.
        fault = invalid_setting(error, "agent_id")
        option = "--" + fault.name.removesuffix("_seconds").replace("_", "-")
        if fault.name.endswith("_seconds"):
            raise in_durations(option, fault) from None
        hint = role_hint() if fault.name == "role" else ""
        raise InvalidValue(option, fault.given, fault.expected, hint=hint) from None


def _workers(key: dict[str, Any]) -> str:
    """Return the maximum number of workers of a prober's key; `default` is the server's `prober_workers`."""
    if key["role"] != "prober":
        return ""
    return "default" if key["max_workers"] is None else f"up to {key['max_workers']}"


def _ending(key: dict[str, Any]) -> str:
    """Say whether a key is good, and until when."""
    if key["is_suspended"]:
        return "suspended"
    if key["revoked_at"] is not None:
        return "revoked"
    if not key["is_valid"]:
        return "expired"
    return "yes" if key["expires_at"] is None else f"until {key['expires_at'][:16]}Z"
