"""Writes down every outside host that this Python process looks up or connects to.

`lab.py` puts it on the path of JupyterLab and its kernels as `sitecustomize`, so it runs in each of them and in
their child processes. ZeroMQ and torch's own sockets do not pass through Python and are not seen.
"""

import os
import socket
import sys
from ipaddress import ip_address
from pathlib import Path

_LOG = Path(os.environ["NETWORK_WATCH_LOG"])
_HERE = {"", "localhost", socket.gethostname()}


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if event == "socket.getaddrinfo":
        host = arguments[0]
    elif event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    else:
        return
    name = host.decode() if isinstance(host, bytes) else str(host or "")
    if name not in _HERE and not _is_loopback(name):
        with _LOG.open("a") as log:
            log.write(f"{name}\n")


def _is_loopback(name: str) -> bool:
    try:
        address = ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


sys.addaudithook(_watch)
