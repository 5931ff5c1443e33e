"""Versions of a target's published interface, and their comparison.

`GET /api/v1/targets/{target_id}/interface-versions` and `.../interface-versions/comparison`.
"""

from itertools import pairwise

from pydantic_core import from_json

from lifesign.domain.access.permissions import Permission
from lifesign.domain.models.base import moment
from lifesign.domain.models.interface_versions import (
    InterfaceComparison,
    InterfaceVersions,
    ListedInterfaceChange,
    ListedVersion,
    VersionPair,
)
from lifesign.domain.published_interface.comparison import Comparison, compare
from lifesign.domain.published_interface.published import Form
from lifesign.domain.published_interface.version_history import is_unstable
from lifesign.registry.errors import InterfaceVersionNotFound, TargetNotFound
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.targets.feed_targets import recalled
from lifesign.registry.targets.list_targets import PATH, require_for_target
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.probing import interface_versions, probe_results
from lifesign.storage.probing.interface_versions import InterfaceVersion
from lifesign.storage.targets import target_links, target_rows
from lifesign.storage.targets.target_rows import StoredTarget


def list_interface_versions(transaction: Transaction, call: Call) -> OperationReply:
    """Return the kept versions of a target, each compared with the previous one."""
    target, kept = _versions_of_target(transaction, call)
    forms = [_form(version) for version in kept]
    compared: list[Comparison | None] = [compare(old, new) for new, old in pairwise(forms)]
    memory = recalled(target.subject_id, probe_results.memories_of(transaction, [target.id]).get(target.id))
    answer = InterfaceVersions(
        target_id=target.subject_id,
        is_unstable=memory is not None and is_unstable(memory.interface_changes),
        versions=[
            _listed(*each) for each in zip(kept, forms, [*compared, *([None] if kept else [])], strict=True)
        ],
    )
    return OperationReply(content=answer)


def compare_interfaces(transaction: Transaction, call: Call) -> OperationReply:
    """Return the differences between two kept versions of a target."""
    query = call.query_as(VersionPair)
    target, kept = _versions_of_target(transaction, call)
    by_number = {version.number: version for version in kept}
    newer = query.version or max(by_number, default=1)
    # Numbers have gaps if a version was kept only for the next event.
    before = max((number for number in by_number if number < newer), default=max(1, newer - 1))
    older = query.previous_version or before
    for number in (newer, older):
        if number not in by_number:
            raise InterfaceVersionNotFound(target.subject_id, number)
    compared = compare(_form(by_number[older]), _form(by_number[newer]))
    answer = InterfaceComparison(
        target_id=target.subject_id,
        previous_version=older,
        version=newer,
        breaking=compared.breaking,
        changes=[
            ListedInterfaceChange(pointer=each.pointer, change=each.change, breaking=each.breaking)
            for each in compared.changes
        ],
        omitted=compared.omitted,
    )
    return OperationReply(content=answer)


def _versions_of_target(transaction: Transaction, call: Call) -> tuple[StoredTarget, list[InterfaceVersion]]:
    """Return the target of the path, and its versions; of a linked agent, those of its target."""
    named = call.path["target_id"]
    require_for_target(transaction, call.caller, Permission.READ_TARGETS, named)
    subject_id = target_links.probed_for(transaction, named) or named
    target = target_rows.find(transaction, subject_id)
    if target is None:
        raise TargetNotFound(subject_id)
    return target, interface_versions.versions_of(transaction, target.id)


def _form(version: InterfaceVersion) -> Form:
    form: Form = from_json(version.body)
    return form


def _listed(version: InterfaceVersion, form: Form, compared: Comparison | None) -> ListedVersion:
    return ListedVersion(
        version=version.number,
        seen_at=moment(version.seen_at_s),
        until=None if version.until_s is None else moment(version.until_s),
        kind=form["kind"],
        digest=version.digest,
        changes=None if compared is None else len(compared.changes) + compared.omitted,
        breaking=None if compared is None else compared.breaking,
    )


OPERATIONS = (
    Operation(
        method="GET",
        path=f"{PATH}/{{target_id}}/interface-versions",
        summary="List the kept versions of a target's published interface",
        action=Permission.READ_TARGETS,
        function=list_interface_versions,
        is_write=False,
        answer=InterfaceVersions,
        errors=(404,),
    ),
    Operation(
        method="GET",
        path=f"{PATH}/{{target_id}}/interface-versions/comparison",
        summary="Compare two versions of a target's published interface",
        action=Permission.READ_TARGETS,
        function=compare_interfaces,
        is_write=False,
        query=VersionPair,
        answer=InterfaceComparison,
        errors=(404,),
    ),
)
