"""Azure Personalizer's REST interface to the gateway's operations."""

from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from producers.gateway.api import Gateway, encoded, headers_of, json_of
from producers.gateway.personalizer import (
    PREFIX,
    RANK,
    STATUS,
    feedback_of,
    operation_of,
    rank_request,
    rank_response,
    unsupported,
)
from producers.gateway.server import json_response

RETRY = {"Retry-After": "1"}


@dataclass(frozen=True, slots=True)
class PersonalizerApi:
    """The interface's operations. docs/personalizer.md describes the requests and responses."""

    gateway: Gateway

    def routes(self) -> list[Route]:
        """Return the routes. Paths have no version; see `normalized`."""
        return [
            Route(RANK, self.rank, methods=["POST"]),
            Route(f"{PREFIX}events/{{event_id:id}}/reward", self.reward, methods=["POST"]),
            Route(f"{PREFIX}events/{{event_id:id}}/activate", self.activate, methods=["POST"]),
            Route(STATUS, self.status),
            Route(f"{PREFIX}{{operation:id}}", self.other, methods=["GET", "POST", "PUT", "DELETE"]),
        ]

    async def rank(self, request: Request) -> Response:
        """Decide among actions. A repeated event id gets the same decision."""
        body, _ = await json_of(request)
        asked = rank_request(body)
        status, decision = await self.gateway.decide_one(
            asked.context, encoded(asked.context), headers_of(request), with_scores=True
        )
        if status != 200:
            raise HTTPException(status, decision["error"], RETRY)
        return json_response(rank_response(asked, decision), 201)

    async def reward(self, request: Request) -> Response:
        """Write feedback."""
        body, _ = await json_of(request)
        facts = self.gateway.link.facts
        is_part = facts is None or facts.rule == "sum"  # other rules ignore the part
        feedback = feedback_of(request.path_params["event_id"], body, is_part=is_part)
        await self.gateway.send_feedback(feedback, encoded(feedback), headers_of(request))
        return Response(status_code=204)

    async def activate(self, request: Request) -> Response:
        """Record that a deferred decision was shown.

        The request has no body, so a browser would let a page from another site send it.
        """
        if "Origin" in request.headers:
            raise HTTPException(403, "Origin: expected a request that no browser sends; got this header")
        await self.gateway.send_shown({"id": request.path_params["event_id"]}, headers_of(request))
        return Response(status_code=204)

    async def status(self, _: Request) -> Response:
        """Return the state of the interface, or status 503 if the gateway is not ready."""
        self.gateway.link.check_ready()
        message = "The key is valid, and the gateway is ready."
        return json_response({"service": "personalizer", "apiStatus": "Valid", "apiStatusMessage": message})

    async def other(self, request: Request) -> Response:
        """Return status 501 and a remedy for Personalizer's other operations, and 404 or 405 for unknown ones."""
        path = request.scope["path"]
        if operation_of(path) is not None:
            allowed = "GET, HEAD" if path == STATUS else "POST"
            raise HTTPException(405, f"{path}: expected {allowed}; got {request.method}", {"Allow": allowed})
        if (reason := unsupported(path)) is None:
            raise HTTPException(404, f"Personalizer has no operation {path}")
        raise HTTPException(501, reason)
