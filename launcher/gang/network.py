"""Names, addresses, interfaces and ports, with the standard library only.

`Network` is what the gang asks; tests put another in its place, the product has this one.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

from launcher.errors import GangError, SettingsError, setting

_SIOCGIFADDR = 0x8915  # linux/sockios.h
_IF_INET6 = Path("/proc/net/if_inet6")


class Network:
    """The pod's network."""

    bind_host = ""
    """Where the peer channel listens: every address of the pod."""

    def resolve(self, name: str) -> list[str]:
        """All addresses of `name`, v4 first, without doubles; empty when it does not resolve now."""
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError):
            return []
        found.sort(key=lambda item: item[0] != socket.AF_INET)
        return list(dict.fromkeys(str(item[4][0]) for item in found))

    def interfaces(self) -> dict[str, list[str]]:
        """Addresses by interface name, v4 first; an interface without an address has an empty list."""
        result: dict[str, list[str]] = {name: [] for _, name in socket.if_nameindex()}
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            for name, addresses in result.items():
                request = struct.pack("256s", name.encode()[:15])
                with contextlib.suppress(OSError):
                    answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                    addresses.append(socket.inet_ntoa(answer[20:24]))
        with contextlib.suppress(OSError):
            for line in _IF_INET6.read_text().splitlines():
                address, *_, name = line.split()
                parsed = ipaddress.IPv6Address(bytes.fromhex(address))
                if not parsed.is_link_local:
                    result.setdefault(name, []).append(str(parsed))
        return result

    def listen(self, port: int) -> socket.socket:
        """A listening TCP socket on every address (v4, and v6 where the kernel has it)."""
        dual = self.bind_host == "" and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual or ":" in self.bind_host else socket.AF_INET
        try:
            return socket.create_server(
                (self.bind_host, port), family=family, dualstack_ipv6=dual, backlog=1024
            )
        except OSError as error:
            raise GangError(
                f"cannot listen on port {port} (peerPort): {error.strerror}. "
                "Another process of this pod or, with hostPorts, of this node has it: set another peerPort."
            ) from error

    def connect(self, host: str, port: int, timeout: float) -> socket.socket:
        """A connected TCP socket; raises OSError."""
        return socket.create_connection((host, port), timeout=timeout)


def nic_addresses(network: Network, nic: str) -> list[str]:
    """The addresses of `nic`. Raises `SettingsError` that lists the interfaces, when there is none such."""
    interfaces = network.interfaces()
    listed = "; ".join(
        f"{name} {', '.join(found) or 'without address'}" for name, found in interfaces.items()
    )
    if nic not in interfaces:
        raise SettingsError(
            setting(
                "nic (CONF_PADDLE_NIC)",
                nic,
                "a network interface of the pod",
                f"this pod has only: {listed}",
                "Set nic to one of them",
            )
        )
    if not interfaces[nic]:
        raise SettingsError(
            setting(
                "nic (CONF_PADDLE_NIC)",
                nic,
                "an interface with an address",
                f"peers must reach it, and it has none; this pod has: {listed}",
                "Set nic to one with an address",
            )
        )
    return interfaces[nic]


def advertised(network: Network, nic: str) -> str:
    """The IPv4 address of `nic` that this rank tells its peers (docs/adr/0004).

    Always an address: Paddle resolves a name again and again, and DNS may be behind or away. Raises
    `SettingsError` for an interface without an IPv4 address, which Paddle cannot use.
    """
    addresses = nic_addresses(network, nic)
    for address in addresses:
        if ":" not in address:
            return address
    raise SettingsError(
        setting(
            "nic (CONF_PADDLE_NIC)",
            nic,
            "an interface with an IPv4 address",
            f"Paddle's servers take no IPv6 ones, and it has only {', '.join(addresses)}",
            "Set nic to one with an IPv4 address",
        )
    )


def accepts(network: Network, host: str, port: int, timeout: float = 1.0) -> bool:
    """Whether something accepts a TCP connection there now."""
    try:
        network.connect(host, port, timeout).close()
    except OSError:
        return False
    return True
