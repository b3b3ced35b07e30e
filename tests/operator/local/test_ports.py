"""Ports of this machine that stay free until a process listens on them."""

import errno
import random
import socket
from pathlib import Path

import pytest

from wisp_operator.local.machine.ports import QUIET_PORTS, PortTaken, free_port, require_free


def test_a_free_port_is_none_that_the_system_gives_to_connections():
    ports = [free_port() for _ in range(20)]
    first_of_connections = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(port < first_of_connections for port in ports)
    assert len(set(ports)) > 10, "two processes that ask at once get two ports"


def test_a_port_that_is_taken_is_passed_over(monkeypatch):
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        others = [free_port() for _ in range(3)]
        monkeypatch.setattr(random, "sample", lambda ports, count: [port, *others])
        assert free_port() in others


def test_where_all_of_them_are_taken_the_system_chooses(monkeypatch):
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        monkeypatch.setattr(random, "sample", lambda ports, count: [taken.getsockname()[1]])
        assert free_port() not in QUIET_PORTS


@pytest.mark.parametrize(("port", "proposed"), [(8080, 8081), (65535, 65534)])
def test_another_port_that_there_is_replaces_a_taken_one(monkeypatch, port, proposed):
    def taken(*_):
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(socket.socket, "bind", taken)
    with pytest.raises(PortTaken, match=f"choose another with --port {proposed}"):
        require_free("127.0.0.1", port)
