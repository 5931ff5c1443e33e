"""The examination of a registry: its answer and clock, the key, its decisions, its evidence, its probers."""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import from_json

from lifesign.cli.doctor.check_result import CheckResult, of_the_clock, of_the_mode
from lifesign.cli.doctor.http import MAX_ANSWER_BYTES, MAX_LIST_BYTES, fetch
from lifesign.client.environment_variables import KEY_VARIABLE, URL_VARIABLE
from lifesign.domain.access.permissions import looks_like_key
from lifesign.domain.common.clock_skew import offset_text
from lifesign.domain.lifecycle.verdict_suspension import MonitorState
from lifesign.domain.models.monitor import MonitorRecord
from lifesign.domain.models.monitor_faults import (
    credential_faults,
    lost_evidence_text,
    silent_class_faults,
    suspension_text,
    unreached_target_faults,
)
from lifesign.domain.models.shards import LivingProber, ShardsShown
from lifesign.domain.models.targets import TargetList
from lifesign.domain.net.allowed_addresses import without_password
from lifesign.domain.probing.shard_eligibility import DEFAULT_INTERVAL_S, NO_PROGRESS_INTERVALS
from lifesign.domain.text.counts import plural, pluralize
from lifesign.domain.text.durations import duration_text
from lifesign.domain.text.times import utc_text
from lifesign.registry.policies import DEFAULT_POLICIES


def of_a_registry(url: str | None, key_file: Path | None) -> Iterator[CheckResult]:
    """Check whether a registry answers, has the right time, and accepts the key."""
    if url is None:
        yield CheckResult(
            "registry",
            "skipped",
            "no registry was given, so none was checked",
            f"--registry URL, or {URL_VARIABLE}",
        )
    if url is None and key_file is None and not os.environ.get(KEY_VARIABLE):
        return
    key = os.environ.get(KEY_VARIABLE, "")
    if key_file is not None:
        yield from of_the_mode(key_file, "key")
        try:
            key = key_file.read_bytes()[:MAX_ANSWER_BYTES].decode("ascii", "replace").strip()
        except OSError as error:
            yield CheckResult(
                "key", "fault", f"{key_file} cannot be read: {error.strerror}", "name another --key-file"
            )
            return
    if key and not looks_like_key(key):
        yield CheckResult(
            "key", "fault", "not a key of lifesign: expected ahk_ and 43 characters", "keys create prints one"
        )
    if url is not None:
        yield from _check_answer(url, key)


def _shown(url: str) -> str:
    """Return a registry's URL without what may be a secret: user, password, query and fragment."""
    return without_password(url).partition("?")[0].partition("#")[0]


def _check_answer(url: str, key: str) -> Iterator[CheckResult]:
    shown_url = _shown(url)
    answer = fetch(f"{url.rstrip('/')}/healthz")
    if answer is None:
        advice = (
            "check that the registry is running, that the address is right, and that no proxy or firewall "
            "blocks it"
        )
        yield CheckResult("registry", "fault", f"{shown_url} does not answer", advice)
        return
    status, apart_s, body = answer
    is_readable = _is_readable_on_the_way(url)
    # A call without a key would be logged as refused.
    shown_key = key if looks_like_key(key) and not is_readable else ""
    if not _is_a_registrys(url, status, body, shown_key):
        advice = (
            "give the URL of lifesign serve; if it is behind a proxy, check that the proxy reaches the server"
        )
        yield CheckResult("registry", "fault", f"{shown_url} answers {status}, but not as a registry", advice)
        return
    if status == 200:
        yield CheckResult("registry", "ok", f"{shown_url} can serve")
    else:
        yield CheckResult(
            "registry",
            "fault",
            f"{shown_url} answers {status}",
            "see the registry's log; often its database is unreachable",
        )
    if apart_s is not None:
        yield of_the_clock("clock", "the registry's", apart_s)
    if shown_key:
        yield from _of_the_key(url, shown_key)
    elif looks_like_key(key):
        yield CheckResult(
            "key",
            "skipped",
            f"the key was not sent, since {shown_url} is not encrypted",
            "give a URL of https",
        )


def _is_readable_on_the_way(url: str) -> bool:
    """Return whether a key would be sent over a network unencrypted. `url` has been requested."""
    from yarl import URL  # noqa: PLC0415 - loaded by `fetch`

    from lifesign.domain.targets.target import is_in_the_clear  # noqa: PLC0415 - see above

    return is_in_the_clear(str(URL(url).origin()))


def _is_a_registrys(url: str, status: int, body: bytes, key: str) -> bool:
    """Return whether this is a registry's answer to the readiness check.

    Other servers answer "ok" there, too. Only a registry has a record of its monitor, or refuses it to this
    key, or without a key, with a code of its own.
    """
    if status != 200:
        return _has_code(body)
    answer = fetch(f"{url.rstrip('/')}/api/v1/monitor", key)
    return answer is not None and (_has_code(answer[2]) or _has_tracks(answer[2]))


def _has_tracks(body: bytes) -> bool:
    """Return whether this is the record of a monitor; its end may be cut off."""
    try:
        summary = from_json(body, allow_partial=True)
    except ValueError:
        return False
    return isinstance(summary, dict) and isinstance(summary.get("tracks"), dict)


def _has_code(body: bytes) -> bool:
    """Return whether an error has a registry's form."""
    try:
        summary = from_json(body)
    except ValueError:
        return False
    error = summary.get("error") if isinstance(summary, dict) else None
    return isinstance(error, dict) and isinstance(error.get("code"), str)


def _of_the_key(url: str, key: str) -> Iterator[CheckResult]:
    answer = fetch(f"{url.rstrip('/')}/api/v1/monitor", key, MAX_LIST_BYTES)
    status = None if answer is None else answer[0]
    if status == 401:
        yield CheckResult(
            "key",
            "fault",
            "the registry does not know the key, or it is no longer valid",
            "lifesign keys create",
        )
    elif status in {200, 403}:
        yield CheckResult("key", "ok", "the registry knows it")
        if answer is not None and status == 200:
            yield from of_the_monitor(answer[2])
            yield from _of_the_probers(url, key)
    else:
        yield CheckResult("key", "warning", f"the registry answers {status} to the key", "ask again later")


def of_the_monitor(answer: bytes) -> Iterator[CheckResult]:
    """Check whether verdicts are suspended, and how many agents have no current evidence."""
    try:
        monitor = MonitorRecord.model_validate_json(answer)
    except ValidationError:
        yield _unread("decisions", "/api/v1/monitor", len(answer))
        return
    yield from _of_its_decisions(monitor)
    lost = monitor.lost_evidence
    if lost is not None:
        yield CheckResult(
            "evidence",
            "warning",
            lost_evidence_text(lost),
            "check the probers and their network: docs/when-wrong.md",
        )
    for fault in (
        *silent_class_faults(monitor),
        *unreached_target_faults(monitor),
        *credential_faults(monitor),
    ):
        yield CheckResult("evidence", "warning", fault.text, fault.hint)


def _unread(about: str, path: str, size: int) -> CheckResult:
    """Say that an answer was not read, and so not examined; `size` in bytes, MAX_LIST_BYTES if it was cut."""
    if size >= MAX_LIST_BYTES:
        summary = f"{path} was not checked: the answer has more than {MAX_LIST_BYTES:,} bytes"
        return CheckResult(about, "warning", summary, "read it with curl")
    summary = f"{path} was not checked: this version cannot read the answer"
    return CheckResult(about, "warning", summary, "install the registry's version of lifesign here")


def _of_the_probers(url: str, key: str) -> Iterator[CheckResult]:
    """Report whether probers are running, and whether their clocks are right."""
    root = url.rstrip("/")
    shards, targets = (
        fetch(f"{root}/api/v1/shards", key, MAX_LIST_BYTES),
        fetch(f"{root}/api/v1/targets?limit=1", key),
    )
    if shards is None or targets is None or (shards[0], targets[0]) != (200, 200):
        return
    try:
        living = ShardsShown.model_validate_json(shards[2]).probers
        count = TargetList.model_validate_json(targets[2]).total
    except ValidationError:
        yield _unread("probers", "/api/v1/shards or /api/v1/targets", max(len(shards[2]), len(targets[2])))
        return
    if living:
        # The registry's clock wrote the times.
        yield of_the_reports(living, time.time() + (shards[1] or 0.0), has_targets=count > 0)
    elif count:
        summary = (
            f"no prober is running, and {count:,} {plural(count, 'target is', 'targets are')} waiting "
            "to be probed"
        )
        yield CheckResult("probers", "warning", summary, f"lifesign crawl PROBE.yml --registry {_shown(url)}")
    else:
        yield CheckResult("probers", "skipped", "no prober is running, and there is no target to probe")
    for prober in living:
        offset_s = prober.clock_offset_s
        if offset_s is not None and abs(offset_s) > DEFAULT_POLICIES.clock_offset_seconds:
            yield CheckResult(
                "clock",
                "warning",
                f"the clock of prober {prober.holder} is {offset_text(offset_s)} the registry's",
                "set the clock of its machine (NTP); it does not affect verdicts",
            )


def of_the_reports(living: Sequence[LivingProber], now_s: float, *, has_targets: bool) -> CheckResult:
    """Check how many of the registered probers have reported results lately.

    A prober that joined less than two of its intervals ago is not late yet. `now_s`: by the registry's clock.
    """
    reporting = [prober for prober in living if not _is_late(prober, now_s)]
    last_s = max((each.reported_at.timestamp() for each in living if each.reported_at), default=None)
    ago = "none has reported a result yet"
    if last_s is not None:
        ago = f"the last result arrived {duration_text(max(0.0, now_s - last_s))} ago"
    if reporting or not has_targets:
        counts = f"{len(reporting)} of {pluralize(len(living), 'prober')}"
        return CheckResult("probers", "ok", f"{counts} reported within two intervals; {ago}")
    ends = utc_text(max(prober.expires_at for prober in living), "seconds")
    return CheckResult(
        "probers",
        "warning",
        f"none of {pluralize(len(living), 'prober')} reported a result within two intervals; {ago}",
        f"check that it still runs: a prober that was killed stays listed until its lease ends ({ends})",
    )


def _is_late(prober: LivingProber, now_s: float) -> bool:
    last = prober.joined_at if prober.reported_at is None else prober.reported_at
    return now_s - last.timestamp() > NO_PROGRESS_INTERVALS * (prober.interval_s or DEFAULT_INTERVAL_S)


def _of_its_decisions(monitor: MonitorRecord) -> Iterator[CheckResult]:
    """Report whether verdicts are suspended now."""
    suspended_tracks = {
        name: track for name, track in monitor.tracks.items() if track.state is MonitorState.SUSPENDED
    }
    if not suspended_tracks:
        yield CheckResult("decisions", "ok", "verdicts are active")
    for name, track in suspended_tracks.items():
        yield CheckResult(
            "decisions",
            "warning",
            (
                f"suspended since {utc_text(track.since, 'seconds')} for agents monitored by {name}: "
                f"{suspension_text(track)}"
            ),
            "the suspension ends by itself; if the agents are really down, run: lifesign monitor release",
        )
