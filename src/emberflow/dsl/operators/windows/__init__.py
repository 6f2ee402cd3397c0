"""Windows: parts of the payloads of a key, each aggregated on its own.

`specs` says which windows there are and `windowed` what can be asked of them. `plain` and `updates` say how
they are kept: with one result of each window, or with early results and corrections. `over` has windows that
end with each payload, and `gathering` brings the results of all keys of a window together.
"""

from emberflow.dsl.operators.windows.gathering import GatheredWindows
from emberflow.dsl.operators.windows.over import OverStream, over
from emberflow.dsl.operators.windows.plain import WindowedStream, window
from emberflow.dsl.operators.windows.specs import (
    CountWindow,
    Cumulate,
    Emit,
    Session,
    Sliding,
    TimeWindows,
    Tumbling,
    Window,
    WindowResult,
    Windows,
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
    "Cumulate",
    "Emit",
    "GatheredWindows",
    "OverStream",
    "Session",
    "Sliding",
    "TimeWindows",
    "Tumbling",
    "UpdatedWindows",
    "Window",
    "WindowResult",
    "WindowSpec",
    "WindowUpdate",
    "WindowedStream",
    "Windows",
    "checked_windows",
    "over",
    "window",
    "window_updates",
]
