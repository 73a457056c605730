"""Route of what changes: one stream of events for a page."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Depends, Request
from fastapi.responses import StreamingResponse

from assay.web.answers import HomeOf, make_router
from assay.web.live import Watches, server_sent

router = make_router()


def watches_of(request: Request) -> Watches:
    watches = request.app.state.watches
    assert isinstance(watches, Watches)
    return watches


WatchesOf = Annotated[Watches, Depends(watches_of)]


@router.get("/api/live", include_in_schema=False)
async def live(home: HomeOf, watches: WatchesOf) -> StreamingResponse:
    """Stream what changes in a project, as server-sent events (`web/live.py`)."""
    watch = watches.of(home)
    stream = watch.open(asyncio.get_running_loop())
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(
        server_sent(watch, stream), media_type="text/event-stream", headers=headers
    )
