"""A Django agent with a health document.

    uvicorn --app-dir docs/examples django_agent:app

In your own project, wrap `get_asgi_application()` in asgi.py. The other lines make a project of this file.
"""

import json
import secrets

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path

from lifesign import AgentHealthMiddleware

settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY=secrets.token_urlsafe())


async def ask(request: HttpRequest) -> JsonResponse:
    question = json.loads(request.body)
    return JsonResponse({"answer": f"You asked: {question['text']}"})


urlpatterns = [path("ask", ask)]

app = AgentHealthMiddleware(
    get_asgi_application(),
    agent_id="https://agent.example.com/.well-known/agent-card.json",
)
