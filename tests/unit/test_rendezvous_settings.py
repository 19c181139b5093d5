"""Addresses, interfaces and secrets of the rendezvous."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from hvd_keras._rendezvous import addresses, interfaces, secret, tls
from hvd_keras.config import Config
from hvd_keras.exceptions import ConfigError, LaunchError

DIGITS = "ab" * 32


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tcp:host:80", ("host", 80)),
        ("tcp:10.0.0.1:65535", ("10.0.0.1", 65535)),
        ("tcp:[fe80::1]:7", ("fe80::1", 7)),
        ("host:80", ("host", 80)),
        ("tcp:fe80::1:7", None),
        ("tcp:host", None),
        ("tcp::80", None),
        ("tcp:host:0", None),
        ("tcp:host:65536", None),
        ("tcp:host:\u0661", None),
    ],
)
def test_host_and_port_are_read(
    text: str, expected: tuple[str, int] | None
) -> None:
    assert addresses.host_and_port(text) == expected


@pytest.mark.parametrize("text", ["unix:/a", "unix:@a", "tcp:[::1]:5"])
def test_addresses_are_written_as_they_are_read(text: str) -> None:
    assert addresses.setting(addresses.parse(text)) == text


@pytest.mark.parametrize("text", ["", "unix:a", "udp:a:1", "tcp:a", "/a"])
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="tcp:HOST:PORT"):
        addresses.parse(text)


def test_an_interface_is_given_by_name_or_address() -> None:
    assert interfaces.address_of("lo") == "127.0.0.1"
    assert interfaces.address_of("127.0.0.1") == "127.0.0.1"
    assert interfaces.name_of("127.0.0.1") == interfaces.name_of("lo") == "lo"
    for name in ("no-such-interface", "192.0.2.1"):
        with pytest.raises(ConfigError, match="lo"):
            interfaces.address_of(name)


def test_this_host_is_known_by_its_names_and_addresses() -> None:
    for name in ("localhost", "127.0.0.1", socket.gethostname()):
        assert interfaces.is_this_host(name)
    assert not interfaces.is_this_host("192.0.2.1")
    assert not interfaces.is_this_host("no-such-host.invalid")
    assert interfaces.address_to_listen_at(["localhost"], None) == "127.0.0.1"


def test_unknown_host_is_an_error() -> None:
    with pytest.raises(LaunchError, match=r"no-such-host\.invalid"):
        interfaces.address_towards("no-such-host.invalid")


def test_secret_comes_from_the_variable_or_the_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f" {DIGITS}\n")
    file.chmod(0o600)
    expected = bytes.fromhex(DIGITS)
    assert secret.find(Config()) is None
    assert secret.find(Config(secret=DIGITS)) == expected
    assert secret.find(Config(secret_file=str(file))) == expected
    both = Config(secret="cd" * 32, secret_file=str(file))
    assert secret.find(both) == bytes.fromhex("cd" * 32)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o602])
def test_secret_file_that_others_may_use_is_refused(
    tmp_path: Path, mode: int
) -> None:
    file = tmp_path / "secret"
    file.write_text(DIGITS)
    file.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600") as raised:
        secret.find(Config(secret_file=str(file)))
    assert DIGITS not in str(raised.value)


def test_malformed_secret_file_is_refused_and_hidden(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("hunter2")
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="64 hexadecimal") as raised:
        secret.find(Config(secret_file=str(file)))
    assert "hunter2" not in str(raised.value)
    with pytest.raises(ConfigError, match="No such file"):
        secret.find(Config(secret_file=str(tmp_path / "none")))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_secret_file_of_another_user_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(DIGITS)
    file.chmod(0o600)
    os.chown(file, 1, 1)
    with pytest.raises(ConfigError, match="user 1 "):
        secret.find(Config(secret_file=str(file)))


def test_tls_needs_all_three_files() -> None:
    assert tls.context(Config(), is_server=True) is None
    with pytest.raises(ConfigError, match="no HVD_TLS_KEY, HVD_TLS_CA"):
        tls.context(Config(tls_cert="c"), is_server=True)
    with pytest.raises(ConfigError, match="PEM"):
        tls.context(
            Config(tls_cert="/c", tls_key="/k", tls_ca="/a"), is_server=False
        )
