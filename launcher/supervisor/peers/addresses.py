"""Host names, IP addresses, network interfaces and ports of a pod, with the standard library only.

The agent reaches the network through `PodNetwork`; tests replace it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import socket
import struct
from collections.abc import Collection, Iterator
from pathlib import Path

from launcher.errors import GangError, setting_error

_SIOCGIFADDR = 0x8915  # linux/sockios.h
_TCP_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED = "01"
_WITHOUT_PEER = frozenset(("02", "03", "07", "0A"))
"""States of sockets that are not connected to a peer: TCP_SYN_SENT, TCP_SYN_RECV, TCP_CLOSE and TCP_LISTEN. These
numbers and the number of TCP_ESTABLISHED are from the kernel's include/net/tcp_states.h."""


class PodNetwork:
    """The network of this pod: name resolution, interfaces, listening and connecting."""

    bind_host = ""
    """Address on which the peer server listens; empty: every address of the pod."""

    def resolve(self, name: str) -> list[str]:
        """Return all addresses of `name`, IPv4 first, without duplicates; empty if it does not resolve."""
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError):
            return []
        found.sort(key=lambda item: item[0] != socket.AF_INET)
        return list(dict.fromkeys(str(item[4][0]) for item in found))

    def interfaces(self) -> dict[str, str]:
        """Return the first IPv4 address of each network interface; an empty text for an interface without one."""
        result = {name: "" for _, name in socket.if_nameindex()}
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            for name in result:
                request = struct.pack("256s", name.encode()[:15])
                with contextlib.suppress(OSError):
                    answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                    result[name] = socket.inet_ntoa(answer[20:24])
        return result

    def listen(self, port: int) -> socket.socket:
        """Return a TCP socket that listens on `port` of every IPv4 and, if the kernel supports it, IPv6 address.

        Raises:
            GangError: the port is in use, or cannot be used.
        """
        dual = self.bind_host == "" and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual or ":" in self.bind_host else socket.AF_INET
        try:
            return socket.create_server(
                (self.bind_host, port), family=family, dualstack_ipv6=dual, backlog=1024
            )
        except OSError as error:
            fix = "Fix: set a peerPort that this pod may use (1024 or higher)."
            if error.errno == errno.EADDRINUSE:
                fix = "Another process of this pod or, with hostPorts, of this node uses it. Fix: set another peerPort."
            raise GangError(f"cannot listen on port {port} (peerPort): {error.strerror}. {fix}") from error

    def connect(self, host: str, port: int, timeout: float) -> socket.socket:
        """Return a TCP socket connected to `host`:`port`.

        Raises:
            OSError: the connection failed, or was not made within `timeout` seconds.
        """
        return socket.create_connection((host, port), timeout=timeout)


def find_advertised_address(network: PodNetwork, nic: str) -> str:
    """Return the IPv4 address of the interface `nic`, which this rank advertises to its peers.

    The result is an address and never a name, because Paddle would resolve a name repeatedly, and DNS may be outdated
    or unavailable.

    Raises:
        SettingsError: there is no such interface, or it has no IPv4 address, so Paddle cannot use it.
    """
    interfaces = network.interfaces()
    if interfaces.get(nic):
        return interfaces[nic]
    listed = "; ".join(f"{name} {address or 'without one'}" for name, address in interfaces.items())
    raise setting_error(
        "nic (CONF_PADDLE_NIC)",
        nic,
        "a network interface of the pod with an IPv4 address",
        f"Paddle's servers do not support IPv6; the interfaces of this pod and their IPv4 addresses: {listed}",
        "Set nic to an interface with an IPv4 address",
    )


def accepts_connections(network: PodNetwork, host: str, port: int, timeout: float = 1.0) -> bool:
    """Return whether a process accepts TCP connections on `host`:`port` now."""
    try:
        network.connect(host, port, timeout).close()
    except OSError:
        return False
    return True


def has_connection(hosts: Collection[str], except_port: int) -> bool:
    """Return whether this pod has, or had in the last minute, a TCP connection with one of the IPv4 addresses `hosts`.

    Connections from or to the port `except_port` do not count; they are connections between the launchers.
    """
    return any(
        state not in _WITHOUT_PEER and except_port not in (local[1], remote[1]) and remote[0] in hosts
        for local, remote, state in _read_connections()
    )


def has_clients(host: str, ports: Collection[int]) -> bool:
    """Return whether a process is connected now to one of the local TCP `ports` of the IPv4 address `host`."""
    return any(
        state == _ESTABLISHED and local[0] == host and local[1] in ports
        for local, _, state in _read_connections()
    )


def _read_connections() -> Iterator[tuple[tuple[str, int], tuple[str, int], str]]:
    """Yield (local end, remote end, state) of the TCP connections of this pod; an end is (IPv4 address, port)."""
    for table in _TCP_TABLES:
        with contextlib.suppress(OSError):  # a kernel without IPv6
            for line in table.read_text().splitlines()[1:]:
                _, local, remote, state, *_ = line.split()
                ends = [(_parse_ipv4(end), int(end.partition(":")[2], 16)) for end in (local, remote)]
                yield ends[0], ends[1], state


def _parse_ipv4(end: str) -> str:
    """Return the IPv4 address in `end`, the text of one end of a connection in a table of _TCP_TABLES.

    For an IPv6 address, the result is its last four bytes. They are the right address if an IPv6 socket has an IPv4
    connection. The result for ::1, to which `localhost` may resolve, is 127.0.0.1.
    """
    number = int(end.partition(":")[0][-8:], 16)  # in the byte order of the machine
    address = socket.inet_ntoa(struct.pack("=I", number))
    return "127.0.0.1" if address == "0.0.0.1" else address
