"""The order in which the addresses of a name are tried.

A name may have more than MAX_ATTEMPTS addresses. Then the address that answered last comes first, and the
others take turns: the second request after a failure tries addresses that the first one did not try.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.net.allowed_addresses import Address

MAX_ATTEMPTS: Final = 3
"""Addresses of one name that are tried, one after the other, within one deadline."""
MAX_IN_VAIN: Final = 64
"""Maximum number of addresses of one name whose failures are remembered."""
MAX_HOSTS: Final = 10_000
"""Maximum number of names whose order is remembered; only those with more than MAX_ATTEMPTS addresses are."""


@fast_dataclass()
class _Tried:
    """What is known of the addresses of one name."""

    answered: Address | None = None
    """Address that accepted the last connection."""
    in_vain: tuple[Address, ...] = ()
    """Addresses that accepted no connection, the one that was tried last at the end."""


class AddressOrder:
    """Chooses the addresses of each name to try, given the outcome of earlier attempts."""

    def __init__(self) -> None:
        self._hosts: OrderedDict[str, _Tried] = OrderedDict()

    def of(self, host: str, addresses: Sequence[Address], last_version: int | None = None) -> list[Address]:
        """Return the addresses to try: both families in turn, as one of them may not work here.

        `last_version`: IP version of the family that comes after the other one; None: none does.
        """
        if len(addresses) == 1:
            return list(addresses)
        fours = [address for address in addresses if address.version == 4]
        sixes = [address for address in addresses if address.version == 6]
        both = [address for pair in zip_longest(fours, sixes) for address in pair if address is not None]
        both.sort(key=lambda each: each.version == last_version)
        if len(both) > MAX_ATTEMPTS and (tried := self._hosts.get(host)) is not None:
            rank = {address: number for number, address in enumerate(tried.in_vain)}
            both.sort(key=lambda each: -2 if each == tried.answered else rank.get(each, -1))
        return both[:MAX_ATTEMPTS]

    def note(
        self, host: str, addresses: Sequence[Address], in_vain: Sequence[Address], answered: Address | None
    ) -> None:
        """Record which addresses of a name were tried in vain, and which one accepted a connection."""
        if len(addresses) <= MAX_ATTEMPTS:
            return
        before = self._hosts.pop(host, _Tried())
        if answered is None and before.answered in addresses:
            answered = before.answered
        others = set(addresses).difference(in_vain)
        earlier = [each for each in before.in_vain if each in others]
        self._hosts[host] = _Tried(answered, (*earlier, *in_vain)[-MAX_IN_VAIN:])
        if len(self._hosts) > MAX_HOSTS:
            self._hosts.popitem(last=False)
