"""`python -m resilient_ps.chaos.live.proxy CONTROL`: the proxy's process.

It dials the abstract Unix socket CONTROL, takes its orders there, and ends when that connection
does.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import sys

import uvloop

from resilient_ps.chaos.live.proxy.board import Board
from resilient_ps.chaos.live.proxy.orders import MAX_LINE_BYTES, serve


async def main(control: str) -> None:
    dialled = socket.socket(socket.AF_UNIX)
    dialled.connect(f"\0{control}")
    reader, writer = await asyncio.open_unix_connection(sock=dialled, limit=MAX_LINE_BYTES)
    board = Board()
    looking = asyncio.create_task(board.run())
    try:
        await serve(board, reader, writer)
    finally:
        looking.cancel()
        board.close()


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1]))
