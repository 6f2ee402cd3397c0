"""`verify`: is this flow deterministic, and if not, which function is to blame and why?

From the bottom:

`functions/comparison`  copying and comparing values
`functions/sites`       where a graph calls the user's functions; replacing them by other callables
`functions/variables`   the variables in which a function could keep state
`functions/clues`       suspicious builtins that a function was seen to call
`functions/findings`    a function that is not pure, and the cause
`functions/probes`      callables that record, check or memoise the calls of a function
`processes/tasks`       what is tried, in this process or in a child
`processes/child`       the program of a child process
`processes/children`    starting children and waiting for them
`processes/nursery`     fresh processes for many small tries
`trial`                 the flow under trial, and a case of elements
`differences`           calls that differ between processes
`child_runs`            the same calls and runs in other processes
`blame`                 differences between runs that no single call explains
`shrinking`             fewer elements that still fail
`report`                the error, with code for a test
`verification`          all of it, in order
"""

from emberflow.runners.verify.verification import Verification, verify

__all__ = ["Verification", "verify"]
