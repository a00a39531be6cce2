"""What monitors ask an HTTP server: `/health` is for load balancers, `/metrics` for Prometheus.

The figures are those of `prometheus_client`'s registry: what `desk` counts there, and the memory,
processor time and descriptors of the process.
"""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from trl_dbbench.integrations.serving.desk import Desk

HEALTH = "/health"


def routes(desk: Desk) -> list[Route]:
    """The pages."""

    async def health(request: Request) -> Response:
        ready = desk.ready
        told = {
            "status": "stopping" if desk.closing else "healthy" if ready else "the database does not answer",
            "episodes_open": desk.open,
            "tasks_left": desk.left,
        }
        return JSONResponse(told, status_code=200 if ready else 503)

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    return [Route(HEALTH, health), Route("/metrics", metrics)]
