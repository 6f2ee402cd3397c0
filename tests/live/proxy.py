"""A TCP proxy whose connections can be cut, with what is on them lost."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress


class Proxy:
    """Forwards connections to an address on this machine, until `close`."""

    def __init__(self, port: int) -> None:
        self._towards = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._listening.accept()
                other = socket.create_connection(("127.0.0.1", self._towards))
            except OSError:
                return
            with self._lock:
                self._pairs.append((one, other))
            for ends in ((one, other), (other, one)):
                threading.Thread(target=_forward, args=ends, daemon=True).start()

    def cut(self) -> None:
        """Reset all connections. What is in their buffers, on either side, is lost."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for ends in pairs:
            for end in ends:
                with suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    end.shutdown(socket.SHUT_RD)  # wakes the thread that reads from it
                end.close()

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._accepting.join(5)
        self._listening.close()
        self.cut()


def _forward(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 12):
            target.sendall(data)
