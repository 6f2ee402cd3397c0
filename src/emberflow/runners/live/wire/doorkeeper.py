"""The doorkeeper of a listening socket: strangers can hold only so many connections.

A peer proves who it is in the handshake, and ZeroMQ gives it some seconds for that. Until then each
connection costs memory and a file descriptor. So the doorkeeper counts the connections and closes what
comes beyond those of this run's own processes and a few more. A process of this run that is turned away
tries again, and gets in when the handshakes of strangers have timed out.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading

import zmq
from zmq.utils.monitor import recv_monitor_message

_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_MONITOR_STOPPED


class Doorkeeper:
    """Watches from its making until `close`, which has to come before the socket is closed."""

    def __init__(self, listening: zmq.Socket[bytes], port: int, connections_max: int) -> None:
        self._listening = listening
        self._port = port
        self.connections_max = connections_max
        self._open: set[int] = set()
        self._monitor = listening.get_monitor_socket(_EVENTS)
        self._thread = threading.Thread(target=self._run, name="emberflow doorkeeper", daemon=True)
        self._thread.start()

    def close(self, seconds: float) -> None:
        self._listening.disable_monitor()
        self._thread.join(seconds)

    def _run(self) -> None:
        with self._monitor:
            while True:
                try:
                    event = recv_monitor_message(self._monitor)
                except zmq.ZMQError:  # the context has ended
                    return
                if event["event"] == zmq.EVENT_MONITOR_STOPPED:
                    return
                descriptor = int(event["value"])
                if event["event"] == zmq.EVENT_DISCONNECTED:
                    self._open.discard(descriptor)
                    continue
                self._open.add(descriptor)
                if len(self._open) > self.connections_max:
                    shut_down(descriptor, self._port)


def shut_down(descriptor: int, port: int) -> None:
    """Shut a connection to a port of this process down; ZeroMQ notices and closes it.

    It may be closed by now, and the descriptor may belong to another file: so look at its port.
    """
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.getsockname()[1] == port:
            connection.shutdown(socket.SHUT_RDWR)
