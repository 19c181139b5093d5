"""Another system names the hosts of a job, and starts the agents there.

`Provider` is it for the process that asks for the job, `Provided` for the one
that runs the job. Between them is a socket with lines of JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hvd_keras.run.hosts.launching import last_words
from hvd_keras.run.spec import Provision
from hvd_keras.run.system.loop import Loop

_PERIOD_SECONDS = 1.0
_READ_BYTES = 64 << 10

# Gets host, command and configuration of an agent, and what tells whether
# nobody waits for its end any more. Returns at its end, with its exit status
# and last words.
RunAgent = Callable[
    [str, str, Mapping[str, Any], Callable[[], bool]], tuple[int, str]
]


def _send(peer: socket.socket, what: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # it has hung up, as who reads knows
        peer.sendall(json.dumps(what).encode() + b"\n")


class Provider:
    """Runs the agents that a job wants, each in a thread of its own.

    All methods may be called by any thread.
    """

    def __init__(self, run_agent: RunAgent) -> None:
        """Waits for the job.

        Args:
            run_agent: Runs an agent. The command is for a shell.
        """
        self._run_agent = run_agent
        self._own, self._of_job = socket.socketpair()
        self._lock = threading.Lock()
        threading.Thread(target=self._serve, daemon=True).start()

    def fileno(self) -> int:
        """Returns the descriptor that the job's process must get."""
        return self._of_job.fileno()

    def started(self) -> None:
        """Notes that the job's process has its descriptor."""
        self._of_job.close()

    def tell(self, hosts: Mapping[str, int]) -> None:
        """Tells the job the hosts it may use from now on, with their slots."""
        self._send(hosts=dict(hosts))

    def close(self) -> None:
        """Hangs up: nobody waits for agents any more."""
        self._of_job.close()
        with contextlib.suppress(OSError):  # it ends the thread
            self._own.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        given_up: dict[int, threading.Event] = {}
        with self._own.makefile("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break  # the job was killed
                wanted = json.loads(line)
                if "host" not in wanted:
                    given_up[wanted["agent"]].set()
                    continue
                event = given_up[wanted["agent"]] = threading.Event()
                threading.Thread(
                    target=self._run, args=(wanted, event), daemon=True
                ).start()
        for event in given_up.values():
            event.set()
        with self._lock:  # nobody sends
            self._own.close()

    def _run(self, wanted: Mapping[str, Any], event: threading.Event) -> None:
        host, command = wanted["host"], wanted["command"]
        try:
            status, words = self._run_agent(
                host, command, wanted["configuration"], event.is_set
            )
        except Exception as error:  # else the job would wait for its timeout
            status, words = 1, f"{type(error).__name__}: {error}"
        self._send(agent=wanted["agent"], status=status, words=words)

    def _send(self, **what: Any) -> None:
        with self._lock:
            _send(self._own, what)


@dataclasses.dataclass(eq=False)
class ProvidedAgent:
    """An agent that the provider runs; see `launching.Starter`."""

    kill: Callable[[], None]
    on_end: Callable[[ProvidedAgent], None]
    exit_status: int | None = None
    words: str = ""

    def describe_end(self) -> str:
        """Returns how it ended, and what it said last."""
        words = last_words(self.words) or "no message"
        return f"its agent ended with status {self.exit_status}: {words}."

    def end(self, status: int, words: str) -> None:
        """Notes its end."""
        self.exit_status, self.words = status, words
        self.on_end(self)


class Provided:
    """The provider of the job that this process runs."""

    def __init__(self, loop: Loop, provision: Provision) -> None:
        """Listens to it.

        Args:
            loop: Calls when the provider says something.
            provision: What it gives, with the descriptor of a socket.
        """
        self._loop = loop
        self._socket = socket.socket(fileno=provision.descriptor)
        self._socket.set_inheritable(False)
        self._unread = b""
        self._agents: list[ProvidedAgent] = []
        self._hosts = provision.hosts
        self._on_hosts: Callable[[Mapping[str, int]], None] | None = None
        self._next = 0.0
        loop.watch(self._socket, self._read)

    def watch(self, on_hosts: Callable[[Mapping[str, int]], None]) -> None:
        """Calls `on_hosts` with the hosts, each second, in `step()`.

        It is called with those that have not changed too: a host may be tried
        again.
        """
        self._on_hosts = on_hosts

    def next_deadline(self) -> float:
        """Returns the monotonic time by which `step()` must be called."""
        return self._next

    def step(self) -> None:
        """Says which hosts there are, if it is time."""
        now = time.monotonic()
        if self._on_hosts is not None and now >= self._next:
            self._next = now + _PERIOD_SECONDS
            self._on_hosts(self._hosts)

    def close(self) -> None:
        """Says no more which hosts there are."""
        self._on_hosts = None

    def start(
        self,
        host: str,
        command: Sequence[str],
        configuration: Mapping[str, Any],
        on_end: Callable[[ProvidedAgent], None],
    ) -> ProvidedAgent:
        """Starts an agent.

        Args:
            host: Where.
            command: What to run there.
            configuration: The agent gets this on its standard input.
            on_end: Called when it has ended.
        """
        wanted = {
            "agent": len(self._agents),
            "host": host,
            "command": "exec " + shlex.join(command),
            "configuration": configuration,
        }
        no_more = {"agent": wanted["agent"]}
        agent = ProvidedAgent(lambda: _send(self._socket, no_more), on_end)
        self._agents.append(agent)
        _send(self._socket, wanted)
        return agent

    def _read(self) -> None:
        data = self._socket.recv(_READ_BYTES)
        if not data:
            self._loop.forget(self._socket)
            for agent in self._agents:
                if agent.exit_status is None:
                    agent.end(1, "who runs it has hung up")
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if "hosts" in told:
                self._hosts, self._next = told["hosts"], 0.0
            else:
                agent = self._agents[told["agent"]]
                agent.end(told["status"], told["words"])
