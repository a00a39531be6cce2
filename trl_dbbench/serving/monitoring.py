"""What monitors ask an HTTP server: `/health` is for load balancers, `/metrics` for Prometheus.

The figures are those of `prometheus_client`'s registry: what `desk` and `tools` count there, and the memory,
processor time and descriptors of the process.
"""

from __future__ import annotations

from mcp.server.auth.middleware.bearer_auth import RequireAuthMiddleware
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from trl_dbbench.serving.desk import Desk


def routes(desk: Desk, *, with_token: bool) -> list[Route]:
    """The pages.

    Args:
        with_token: the figures are for those who have the server's token. The health is for everybody.
    """

    async def health(request: Request) -> Response:
        ready = desk.ready
        told = {
            "status": "stopping" if desk.closing else "ok" if ready else "the database does not answer",
            "episodes_open": desk.open,
            "tasks_left": desk.left,
        }
        return JSONResponse(told, status_code=200 if ready else 503)

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    pages = [Route("/health", health), Route("/metrics", metrics)]
    if with_token:
        pages[1] = Route("/metrics", RequireAuthMiddleware(pages[1], required_scopes=[]))
    return pages
