"""Versions of the published interfaces of targets, and the versions that events have reported."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import bindparam, delete, insert, select, update

from lifesign.domain.published_interface.version_history import VersionState
from lifesign.storage.engine.table_definitions import interface_states, interface_versions
from lifesign.storage.engine.transaction import Transaction


class InterfaceVersion(NamedTuple):
    """One version of a target's published interface, in the order of the columns."""

    target: int
    number: int
    seen_at_s: float
    until_s: float | None
    """When the next version took its place; None: it is the newest."""
    digest: str
    body: str
    """Canonical JSON."""


class NewestVersion(NamedTuple):
    """State of a target's versions, with the digest of the newest one."""

    state: VersionState
    digest: str


def states_of(transaction: Transaction, targets: Sequence[int]) -> dict[int, NewestVersion]:
    """Return and lock the states of these targets' versions; targets without a version are absent."""
    states, versions = interface_states.c, interface_versions.c
    wanted = (
        select(
            states.target,
            states.newest,
            states.baseline,
            states.notified_at_s,
            states.due_at_s,
            versions.digest,
        )
        .join(interface_versions, (versions.target == states.target) & (versions.number == states.newest))
        .where(states.target.in_(sorted(set(targets))))
        .order_by(states.target)
        .with_for_update(of=interface_states)
    )
    return {
        target: NewestVersion(VersionState(*state), digest)
        for target, *state, digest in transaction.connection.execute(wanted)
    }


def add(transaction: Transaction, versions: Sequence[InterfaceVersion]) -> None:
    """Store the newest versions of targets, at most one each; a version with the same number is replaced."""
    if not versions:
        return
    columns = interface_versions.c
    of_target = columns.target == bindparam("of")
    transaction.connection.execute(
        delete(interface_versions).where(of_target, columns.number == bindparam("newest")),
        [{"of": version.target, "newest": version.number} for version in versions],
    )
    transaction.connection.execute(
        update(interface_versions)
        .where(of_target, columns.until_s.is_(None))
        .values(until_s=bindparam("at_s")),
        [{"of": version.target, "at_s": version.seen_at_s} for version in versions],
    )
    transaction.connection.execute(insert(interface_versions), [version._asdict() for version in versions])


def set_states(
    transaction: Transaction, states: Mapping[int, VersionState], *, are_new: bool = False
) -> None:
    """Store the states of targets' versions, by target; `are_new`: these targets have none yet."""
    rows = [
        {
            "newest": state.newest,
            "baseline": state.baseline,
            "notified_at_s": state.notified_at_s,
            "due_at_s": state.due_at_s,
            **({"target": target} if are_new else {"of": target}),
        }
        for target, state in sorted(states.items())
    ]
    if rows:
        changed = update(interface_states).where(interface_states.c.target == bindparam("of"))
        transaction.connection.execute(insert(interface_states) if are_new else changed, rows)


def trim(transaction: Transaction, oldest: Mapping[int, tuple[int, int]]) -> None:
    """Delete versions of targets, given (first, kept): those below `first`, except `kept`."""
    rows = [{"of": target, "oldest": first, "kept": kept} for target, (first, kept) in sorted(oldest.items())]
    versions = interface_versions.c
    if rows:
        too_many = delete(interface_versions).where(
            versions.target == bindparam("of"),
            versions.number < bindparam("oldest"),
            versions.number != bindparam("kept"),
        )
        transaction.connection.execute(too_many, rows)


def versions_of(transaction: Transaction, target: int) -> list[InterfaceVersion]:
    """Return the versions of a target, the newest first."""
    wanted = (
        select(interface_versions)
        .where(interface_versions.c.target == target)
        .order_by(interface_versions.c.number.desc())
    )
    return [InterfaceVersion(*row) for row in transaction.connection.execute(wanted)]


def bodies_of(transaction: Transaction, numbers: Mapping[int, Sequence[int]]) -> dict[tuple[int, int], str]:
    """Return the bodies of these versions, by target and number; missing ones are left out."""
    versions = interface_versions.c
    found: dict[tuple[int, int], str] = {}
    for target, wanted in sorted(numbers.items()):
        some = select(versions.number, versions.body).where(
            versions.target == target, versions.number.in_(wanted)
        )
        found |= {(target, row.number): row.body for row in transaction.connection.execute(some)}
    return found


def due_targets(transaction: Transaction, limit: int) -> list[int]:
    """Return at most `limit` targets for which a delayed event is due."""
    due_at_s = interface_states.c.due_at_s
    wanted = (
        select(interface_states.c.target).where(due_at_s <= transaction.now_s).order_by(due_at_s).limit(limit)
    )
    return list(transaction.connection.scalars(wanted))


def forget(transaction: Transaction, before_s: float, limit: int) -> bool:
    """Delete at most `limit` versions that were replaced before a time; return whether more may remain.

    The version that the next event is compared with stays.
    """
    states, versions = interface_states.c, interface_versions.c
    wanted = (
        select(versions.target, versions.number)
        .join(interface_states, states.target == versions.target)
        .where(versions.until_s < before_s, versions.number != states.baseline)
        .order_by(versions.until_s)
        .limit(limit)
    )
    old = [{"of": target, "old": number} for target, number in transaction.connection.execute(wanted)]
    if old:
        is_it = (versions.target == bindparam("of")) & (versions.number == bindparam("old"))
        transaction.connection.execute(delete(interface_versions).where(is_it), old)
    return len(old) == limit
