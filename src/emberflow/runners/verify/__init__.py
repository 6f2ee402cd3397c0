"""`verify`: is this flow deterministic, and if not, which function is to blame and why?

From the bottom:

`results`        copies, comparison, recognition of values
`sites`         where a graph calls functions of the user; other callables in their place
`variables`        where a function could keep something
`clues`         what it was seen to call
`findings`      a function that is not pure, and the cause
`probes`        recorded, checked and remembered calls
`tasks`         what is tried, in this process or a child
`child`         the program of a child process
`processes`     children, started and waited for
`nursery`       fresh processes by the dozen
`trial`         the flow under trial, and a case of elements
`differences`     calls that differ between processes
`child_runs`        the same calls and runs in other processes
`blame`         differences between runs that no single call explains
`shrinking`     fewer elements that still fail
`report`        the error, with code for a test
`verification`  all of it in order
"""

from emberflow.runners.verify.verification import Verification, verify

__all__ = ["Verification", "verify"]
