"""What hvdrun calls in place of ssh to start an agent on a node of Ray.

`python -m hvd_keras.ray.shell ADDRESS -- HOST COMMAND` hands its standard
input, a line, to the driver of Ray at ADDRESS, a Unix socket that this user
alone can reach. It ends as the agent has ended.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import sys
import threading
from collections.abc import Callable

from hvd_keras._rendezvous.listener import Listener
from hvd_keras.exceptions import LaunchError

_BACKLOG = 256

# Gets host, command, its input, and what tells whether nobody waits any more;
# returns when the command has ended, with its exit status and last words.
Start = Callable[[str, str, bytes, Callable[[], bool]], tuple[int, str]]


class Server:
    """Starts agents for hvdrun, each in a thread of its own."""

    def __init__(self, start: Start) -> None:
        """Listens.

        Args:
            start: Runs an agent.

        Raises:
            LaunchError: There is no directory for a socket.
        """
        self._listener = Listener(_BACKLOG)
        address = self._listener.address
        if address.startswith("@"):  # other users could connect
            self.close()
            raise LaunchError(
                "A directory such as TMPDIR must be there in which this user "
                "can make a socket. Received: none."
            )
        self.command = [sys.executable, "-m", __name__, address]
        self._start = start
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Lets nobody in any more."""
        with contextlib.suppress(OSError):  # ends `accept`
            self._listener.socket.shutdown(socket.SHUT_RDWR)
        self._listener.socket.close()
        self._listener.close_address()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listener.socket.accept()
                threading.Thread(
                    target=self._serve, args=(peer,), daemon=True
                ).start()

    def _serve(self, peer: socket.socket) -> None:
        poll = select.poll()  # it says nothing more, so the rest is its end
        poll.register(peer, select.POLLIN)

        def has_gone() -> bool:
            return bool(poll.poll(0))

        with peer, peer.makefile("rb") as lines:
            words, configuration = lines.readline(), lines.readline()
            if not configuration.endswith(b"\n"):
                return  # it was killed
            request = json.loads(words)
            answer = self._start(
                request["host"], request["command"], configuration, has_gone
            )
            with contextlib.suppress(OSError):  # it has gone
                peer.sendall(json.dumps(answer).encode() + b"\n")


def main() -> int:
    """Has the driver start an agent; returns the agent's exit status."""
    address, _, host, command = sys.argv[1:]
    configuration = sys.stdin.buffer.readline()
    with socket.socket(socket.AF_UNIX) as driver:
        driver.connect(address)
        request = {"host": host, "command": command}
        driver.sendall(json.dumps(request).encode() + b"\n" + configuration)
        with driver.makefile("rb") as lines:
            answer = lines.readline()
    if not answer:
        print("the driver of Ray has hung up", file=sys.stderr)
        return 1
    exit_status, words = json.loads(answer)
    sys.stderr.write(words)
    return int(exit_status)


if __name__ == "__main__":
    sys.exit(main())
