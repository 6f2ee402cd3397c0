"""``emberflow ui CHECKPOINT``: the page of a query that does not run here, until somebody presses Ctrl-C."""

from __future__ import annotations

import threading
import webbrowser

from rich.console import Console

from emberflow.extras import need


def ui(location: str, *, port: int = 0, host: str = "127.0.0.1", opens: bool = False) -> None:
    """Serve the page of a checkpoint. ``opens`` shows it in the browser."""
    need(
        "pyarrow", "pyspark", "starlette", "uvicorn", "prometheus_client",
        extra="spark", what="emberflow ui",
    )  # fmt: skip
    from emberflow.commands.views.stored import StoredQuery
    from emberflow.runners.live.web.server import opened, released, show

    query = StoredQuery(location)
    server = opened(
        host, port, "--port to a port that is free, and --host to an address of this machine"
    )
    try:
        show(query)
        server.start()
        address = server.entrance()
        console = Console(stderr=True)
        console.print(f"{query.cut.flow}, cut {query.cut.number}, is shown at", highlight=False)
        console.print(address, soft_wrap=True, highlight=False, markup=False)
        console.print("The address works once. Ctrl-C ends.", style="dim", highlight=False)
        if opens:
            webbrowser.open(address)
        threading.Event().wait()
    except KeyboardInterrupt:
        pass
    finally:
        released(server)
