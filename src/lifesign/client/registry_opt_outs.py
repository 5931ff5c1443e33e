"""Opt-outs of origins by their owners (protocol 3)."""

from lifesign.client.registry_connection import Question, RegistryConnection, body_of, path_of, query_of
from lifesign.domain.models.opt_outs import OptOutList, OptOutRecord, OptOutRequest


class RegistryOptOuts:
    """Requests about opt-outs (`client.opt_outs`): origins that are not to be probed."""

    def __init__(self, connection: RegistryConnection) -> None:
        self._connection = connection

    async def ask(self, url: str) -> OptOutRecord:
        """Request an opt-out: return the token that the origin's owner has to serve as a proof.

        A repeated request looks for that proof at once.
        """
        question = Question(
            method="POST", path=path_of("opt-outs"), body=body_of(OptOutRequest, url=url), may_repeat=True
        )
        return await self._connection.ask_for(OptOutRecord, question)

    async def list(self, *, limit: int = 100, cursor: str | None = None) -> OptOutList:
        """Return one page, at most 1000, of the origins with an opt-out, proven or only requested."""
        query = query_of(limit=limit, cursor=cursor)
        question = Question(method="GET", path=path_of("opt-outs"), query=query, may_repeat=True)
        return await self._connection.ask_for(OptOutList, question)

    async def withdraw(self, url: str) -> None:
        """End the opt-out of an origin; NotFound if it never opted out."""
        question = Question(method="DELETE", path=path_of("opt-outs"), query={"url": url})
        await self._connection.ask(question)
