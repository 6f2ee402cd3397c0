"""Windows: parts of the payloads of a key, each aggregated on its own.

`specs` says which windows there are, `windowed` what can be asked of them, `plain` and `updates` how
they are kept: with one result of each window, or with early results and corrections.
"""

from emberflow.dsl.operators.windows.plain import WindowedStream, window
from emberflow.dsl.operators.windows.specs import (
    CountWindow,
    Emit,
    Session,
    Sliding,
    Tumbling,
    Window,
    WindowResult,
    WindowSpec,
    checked_windows,
)
from emberflow.dsl.operators.windows.updates import (
    KEEPS_KEY,
    UpdatedWindows,
    WindowUpdate,
    window_updates,
)

__all__ = [
    "KEEPS_KEY",
    "CountWindow",
    "Emit",
    "Session",
    "Sliding",
    "Tumbling",
    "UpdatedWindows",
    "Window",
    "WindowResult",
    "WindowSpec",
    "WindowUpdate",
    "WindowedStream",
    "checked_windows",
    "window",
    "window_updates",
]
