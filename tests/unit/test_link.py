"""What the job knows of a host when the link to its agent ends."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from hvd_keras._rendezvous import addresses
from hvd_keras._rendezvous.listener import listen_tcp
from hvd_keras._rendezvous.stream import Stream
from hvd_keras.run.hosts.link import Kind, Link, Loss, frame
from hvd_keras.run.system.loop import Loop

TIMEOUT = 1.0


class Ends:
    """A link of the job, and the socket of the agent."""

    def __init__(self) -> None:
        listener = listen_tcp("127.0.0.1", 0, 1)
        self.agent = addresses.connect(
            addresses.of_tcp(*listener.getsockname()), 5
        )
        served, _ = listener.accept()
        listener.close()
        self.loop = Loop()
        self.lost: list[Loss] = []
        self.link = Link(
            self.loop,
            Stream(served),
            on_message=lambda kind, body: None,
            on_lost=self.lost.append,
            heartbeat_seconds=TIMEOUT / 10,
            timeout_seconds=TIMEOUT,
        )

    def beat(self) -> None:
        self.agent.sendall(frame(Kind.BEAT, b""))

    def end(self) -> Loss:
        """The agent hangs up; the job hears all that it has sent."""
        self.agent.close()
        while not self.lost:
            self.loop.step(5.0)
        return self.lost[0]


@pytest.fixture
def ends() -> Iterator[Ends]:
    found = Ends()
    yield found
    found.agent.close()
    found.link.close()


def test_ranks_end_with_an_agent_that_hangs_up(ends: Ends) -> None:
    ends.beat()
    assert not ends.end().may_run


def test_ranks_may_run_when_the_network_was_silent_before(ends: Ends) -> None:
    """The agent has given up; its ranks have a second to notice it."""
    time.sleep(0.8 * TIMEOUT)
    assert ends.end().may_run


def test_a_job_that_was_slow_hears_first_what_has_come(ends: Ends) -> None:
    time.sleep(0.8 * TIMEOUT)
    ends.beat()
    assert not ends.end().may_run


def test_ranks_may_run_on_a_host_that_is_silent(ends: Ends) -> None:
    time.sleep(1.1 * TIMEOUT)
    assert ends.link.is_silent()
