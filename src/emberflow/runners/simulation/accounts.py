"""The account of a simulated worker: when it states what, and whom it tells.

A live worker makes a statement at the end of a round. Here one comes up to some ticks behind what it is about, so
that several events are in one, and others are told of them before the coordinator is.
"""

from __future__ import annotations

from collections.abc import Callable

from emberflow.engine.messages import Ack, Dealt, Statement
from emberflow.engine.progress.accounts import Account, Accounts
from emberflow.engine.progress.acker import Acker
from emberflow.engine.worker.worker import Worker
from emberflow.runners.simulation.network import Network
from emberflow.runners.simulation.options import Options


def kind_of_acker(options: Options, acker: type[Acker]) -> type[Acker] | type[Accounts]:
    """What hears of all frames: accounts, if they were drawn. Who gives an acker means that one."""
    return Accounts if options.accounts and acker is Acker else acker


class SimulatedAccount:
    """The account of one worker. ``tell`` sends to another worker, ``state`` to the coordinator; ``later`` calls
    something if the process is still alive then."""

    def __init__(
        self,
        network: Network,
        options: Options,
        worker: Worker,
        *,
        tell: Callable[[int, Dealt], None],
        state: Callable[[Statement], None],
        later: Callable[[int, Callable[[], None]], None],
    ) -> None:
        self._account = Account(worker.index, worker.workers)
        self._network = network
        self._ticks_max = options.statement_ticks_max
        self._tell = tell
        self._state = state
        self._later = later
        self._is_due = False

    def receive(self, ack: Ack) -> None:
        for sender, dealt in self._account.receive(ack):
            self._tell(sender, dealt)
        self._state_soon()

    def hear(self, dealt: Dealt) -> None:
        self._account.hear(dealt)
        self._state_soon()

    def _state_soon(self) -> None:
        if not self._ticks_max:
            self.state()
        elif not self._is_due:
            self._is_due = True
            self._later(self._network.ticks(self._ticks_max), self.state)

    def state(self) -> None:
        """Make a statement now, if there is anything new."""
        self._is_due = False
        statement = self._account.statement()
        if statement is not None:
            self._state(statement)
