"""A script for runtime ps without Paddle: trainers stay connected to all servers, and ask them in each step.

The environment variable FAKE is JSON: {"steps": number of steps, "raise": step at which trainer 1 raises ValueError in
attempt 0, "stops": whether trainer 0 stops the servers at its end, as `stop_server` of Paddle does}. At SIGTERM a
trainer works half a second more, asks all servers again, and writes how many answered to `asked-<trainer>.txt` in the
output folder.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

FAKE = json.loads(os.environ["FAKE"])
OUTPUT = Path(os.environ["PADDLE_LAUNCHER_OUTPUT_DIR"])
SERVERS = [end.split(":") for end in os.environ["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")]


def serve():
    """Answer each byte of each connection for ever."""
    end = [os.environ["POD_IP"], os.environ["PADDLE_PORT"]]
    print(f"server {SERVERS.index(end)}", flush=True)  # noqa: T201
    (OUTPUT / f"server-{SERVERS.index(end)}.json").write_text(json.dumps(dict(os.environ)))

    def answer(connection):
        while byte := connection.recv(1):
            connection.sendall(byte)

    def stop():
        while not (OUTPUT / "stop").exists():
            time.sleep(0.05)
        os._exit(0)

    threading.Thread(target=stop, daemon=True).start()
    listener = socket.create_server((end[0], int(end[1])))
    while True:
        threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()


def connect(host, port):
    """Return a connection to a server; try for 20 s."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection((host, int(port)), timeout=10)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def ask_servers(connections):
    """Return how many servers answer."""
    answers = 0
    for connection in connections:
        try:
            connection.sendall(b"?")
            answers += connection.recv(1) == b"?"
        except OSError as error:
            print(error, flush=True)  # noqa: T201
    return answers


def train():
    """Ask all servers in each step; the last trainer needs a second longer."""
    number = int(os.environ["PADDLE_TRAINER_ID"])
    connections = [connect(host, port) for host, port in SERVERS]

    def react(*_):
        time.sleep(0.5 * (number + 1))
        (OUTPUT / f"asked-{number}.txt").write_text(str(ask_servers(connections)))
        sys.exit(0)

    signal.signal(signal.SIGTERM, react)
    (OUTPUT / f"trainer-{number}.json").write_text(json.dumps(dict(os.environ)))
    for step in range(FAKE.get("steps", 3)):
        if ask_servers(connections) != len(SERVERS):
            sys.exit(3)
        if number == 1 and step == FAKE.get("raise") and os.environ["PADDLE_LAUNCHER_ATTEMPT"] == "0":
            raise ValueError(f"bad row in step {step}")
        print(f"step {step}", flush=True)  # noqa: T201
        time.sleep(0.2)
    if FAKE.get("stops"):
        (OUTPUT / f"waits-{number}").touch()
        while number == 0 and not (OUTPUT / "waits-1").exists():
            time.sleep(0.05)
        if number == 0:
            (OUTPUT / "stop").touch()
    time.sleep(number)


if os.environ["TRAINING_ROLE"] == "PSERVER":
    serve()
else:
    train()
