"""A receiver of webhooks: verifies deliveries, acts on each event once, and answers quickly.

WEBHOOK_SECRET=whsec_... uvicorn --app-dir docs/examples webhook_receiver:app
"""

import os

from standardwebhooks import Webhook, WebhookVerificationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

webhook = Webhook(os.environ["WEBHOOK_SECRET"])
last_sequence = 0  # a real receiver stores it together with the results of its work


async def take(request: Request) -> Response:
    global last_sequence  # noqa: PLW0603 - the whole state of a short example
    try:
        payload = webhook.verify(await request.body(), dict(request.headers))
    except WebhookVerificationError:
        return Response(status_code=401)
    for event in payload["data"]["events"]:
        if event["sequence"] > last_sequence:
            print(event["sequence"], event["type"], event["payload"])
            last_sequence = event["sequence"]
    return Response(status_code=204)


async def show(_request: Request) -> JSONResponse:
    return JSONResponse({"last_sequence": last_sequence})


app = Starlette(routes=[Route("/hook", take, methods=["POST"]), Route("/", show)])
