"""Checks of a server's address, certificate and proxies."""

import errno
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from lifesign.cli.doctor import http
from lifesign.cli.doctor.check_result import CheckResult, of_the_directory, of_the_mode
from lifesign.errors import InvalidValue, LifesignError
from lifesign.registry.settings import RegistrySettings
from lifesign.serving.errors import CannotListen
from lifesign.serving.listening_socket import bound
from lifesign.serving.self_signed_certificate import certificate_validity_s
from lifesign.serving.tls_files import MAX_CLOCK_DIFFERENCE_SECONDS, check_pair

CERTIFICATE_WARNING_SECONDS: Final = 14 * 86_400.0


def listener_text(host: str, port: int) -> str:
    """Return the address in words if another program listens at it already; empty if none does."""
    try:
        bound(host, port).close()
    except CannotListen as error:
        return f"{host}, port {port}" if error.why == os.strerror(errno.EADDRINUSE) else ""
    return ""


def of_the_archives(directory: Path | None) -> Iterator[CheckResult]:
    """Check whether the directory for archived events is usable."""
    if directory is None:
        return
    if directory.exists():
        yield from of_the_directory(directory, "archives")
    else:
        yield CheckResult("archives", "skipped", f"{directory} does not exist yet", "lifesign serve makes it")


def of_the_server(host: str, port: int, certificate: Path | None, key: Path | None) -> Iterator[CheckResult]:
    """Check whether a server could listen at this address, and whether its TLS certificate is usable."""
    yield _of_the_port(host, port, "http" if certificate is None else "https")
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        yield CheckResult("certificate", "fault", "give a certificate together with its key", "give both")
        return
    yield from of_the_mode(key, "TLS key")
    try:
        check_pair(certificate, key)
    except InvalidValue as error:
        about = "TLS key" if error.name == "tls_key" else "certificate"
        advice = "give PEM files: the certificate with its chain, and its key without a password"
        yield CheckResult(about, "fault", f"{error.given}: expected {error.expected}", advice)
        return
    validity_s = certificate_validity_s(certificate)
    if validity_s is None:
        return
    begins_s, ends_s = validity_s
    left_s = ends_s - time.time()
    if begins_s > time.time() + MAX_CLOCK_DIFFERENCE_SECONDS:
        summary = f"the certificate is not valid before {time.strftime('%Y-%m-%d', time.gmtime(begins_s))}"
        yield CheckResult("certificate", "fault", summary, "compare the clock, or replace it")
        return
    summary = f"the certificate expires on {time.strftime('%Y-%m-%d', time.gmtime(ends_s))}"
    if left_s <= 0:
        yield CheckResult("certificate", "fault", summary, "renew it")
    elif left_s < CERTIFICATE_WARNING_SECONDS:
        yield CheckResult("certificate", "warning", summary, "renew it, and restart the server")
    else:
        yield CheckResult("certificate", "ok", summary)


def _of_the_port(host: str, port: int, scheme: str) -> CheckResult:
    try:
        bound(host, port).close()
    except CannotListen as error:
        if http.fetch(f"{scheme}://{_in_url(host)}:{port}/healthz") is not None:
            return CheckResult("port", "ok", f"a server answers at {host}, port {port}: it is running")
        if error.why != os.strerror(errno.EADDRINUSE):
            return CheckResult(
                "port", "fault", str(error), "stop the process that uses it, or choose another --port"
            )
        summary = (
            f"another process uses {host}, port {port}, and does not answer within {http.TIMEOUT_SECONDS:g} s"
        )
        advice = (
            "if this is a server that is starting, wait; otherwise stop the process or choose another --port"
        )
        return CheckResult("port", "fault", summary, advice)
    return CheckResult("port", "ok", f"{host}, port {port} is free")


def of_the_proxies(networks: Sequence[str]) -> Iterator[CheckResult]:
    """Check that the trusted proxies are not all addresses, since any client could then forge its own."""
    if not networks:
        return
    named = ", ".join(networks)
    try:
        settings = RegistrySettings.read(trusted_proxies=networks)
    except LifesignError as error:
        yield CheckResult("proxies", "fault", str(error), "give addresses or networks: --trusted-proxies")
        return
    if settings.trusts_everybody:
        summary = f"{named}: any client can forge its address, so that limits have no effect"
        yield CheckResult("proxies", "warning", summary, "name only your proxies: --trusted-proxies")
    else:
        yield CheckResult("proxies", "ok", f"{named}: only these may set a client's address by header")


def _in_url(host: str) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - asked for, not listened on
    return f"[{shown}]" if ":" in shown else shown
