"""Answers what an MPI process asks at its start (PMI, version 1).

MPICH and the libraries that come from it ask through a stream of lines, each
`cmd=NAME KEY=VALUE ...`: who they are, and what the other processes have put
into a store. The store is filled at barriers, at which all processes meet.
"""

from __future__ import annotations

import socket

_MAX_LINE_BYTES = 64 << 10


class Pmi:
    """One process's side of PMI, which knows no way to the others.

    Attributes:
        puts: What the process has put since the last barrier.
        is_at_barrier: Whether the process waits for `leave_barrier`.
    """

    def __init__(self, sock: socket.socket, name: str, size: int) -> None:
        """Serves the process at the other end of `sock`.

        Args:
            sock: A connected stream socket; it is made non-blocking.
            name: A name of the job, which no other job on these hosts has.
            size: The number of processes, each on a host of its own.
        """
        sock.setblocking(False)
        self.puts: dict[str, str] = {}
        self.is_at_barrier = False
        self._sock = sock
        self._name = name
        self._size = size
        self._received = b""
        self._store = {"PMI_process_mapping": f"(vector,(0,{size},1))"}

    def fileno(self) -> int:
        """Returns the descriptor to wait for."""
        return self._sock.fileno()

    def serve(self) -> bool:
        """Answers what has come; False if the process has hung up."""
        try:
            data = self._sock.recv(_MAX_LINE_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._received += data
        *lines, self._received = self._received.split(b"\n")
        if not data or len(self._received) > _MAX_LINE_BYTES:
            return False
        for line in lines:
            self._answer(line.decode("utf-8", "replace"))
        return True

    def leave_barrier(self, puts: dict[str, str]) -> None:
        """Lets the process go on, with what all processes have put."""
        self._store.update(puts)
        self.puts = {}
        self.is_at_barrier = False
        self._say("cmd=barrier_out rc=0")

    def _say(self, line: str) -> None:
        # Answers are short, and the process waits for each.
        self._sock.sendall(line.encode() + b"\n")

    def _answer(self, line: str) -> None:
        words = dict(
            word.split("=", 1) for word in line.split(" ") if "=" in word
        )
        match words.get("cmd"):
            case "init":
                self._say(
                    "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
                )
            case "get_maxes":
                self._say(
                    "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 "
                    "vallen_max=1024"
                )
            case "get_appnum":
                self._say("cmd=appnum rc=0 appnum=0")
            case "get_my_kvsname":
                self._say(f"cmd=my_kvsname rc=0 kvsname={self._name}")
            case "get_universe_size":
                self._say(f"cmd=universe_size rc=0 size={self._size}")
            case "put":
                # The value may hold spaces.
                self.puts[words.get("key", "")] = line.partition("value=")[2]
                self._say("cmd=put_result rc=0 msg=success")
            case "get":
                self._say(self._found(words.get("key", "")))
            case "barrier_in":
                self.is_at_barrier = True
            case "finalize":
                self._say("cmd=finalize_ack rc=0")

    def _found(self, key: str) -> str:
        value = self._store.get(key)
        if value is None:
            return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
        return f"cmd=get_result rc=0 msg=success value={value}"
