"""A device plugin without devices: it gives pretend GPUs to nodes of the local cluster.

`python -m testkit.fake_gpus FOLDER …` offers DEVICES of RESOURCE on the nodes until it receives SIGTERM; each FOLDER is
the root folder of a node's kubelet. What follows is real: the kubelet reports the devices, the scheduler counts
them, the kubelet assigns them to containers, and a container gets the variable NVIDIA_VISIBLE_DEVICES.

A device plugin is a gRPC server, on a socket, with the API v1beta1 (api.proto in pkg/apis/deviceplugin/v1beta1 of
k8s.io/kubelet). Mostly it registers at the kubelet's own socket, whose path is the constant
/var/lib/kubelet/device-plugins/kubelet.sock: the kubelets of the local cluster share this path, and only the last one
that started listens there. Here the kubelet finds the plugin instead: it watches plugins_registry/ in its root folder
and asks each new socket there who it is (api.proto in pkg/apis/pluginregistration/v1). CSI drivers register in this
way, and the kubelet accepts device plugins too (pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go). Of both
APIs only the fields that are used here are written down; protobuf ignores the others.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from testkit.local_cluster import ROOT, Cluster
from testkit.waiting import until

RESOURCE = "nvidia.com/gpu"
DEVICES = ("0", "1")
_SOCKET = "fake-gpus.sock"
_SECONDS = 60

_TEXT, _BOOL = descriptor_pb2.FieldDescriptorProto.TYPE_STRING, descriptor_pb2.FieldDescriptorProto.TYPE_BOOL
_FIELDS: dict[str, tuple[tuple[str, int, int | str, bool], ...]] = {
    "Empty": (),
    "PluginInfo": (
        ("type", 1, _TEXT, False),
        ("name", 2, _TEXT, False),
        ("supported_versions", 4, _TEXT, True),
    ),
    "RegistrationStatus": (("plugin_registered", 1, _BOOL, False), ("error", 2, _TEXT, False)),
    "Device": (("ID", 1, _TEXT, False), ("health", 2, _TEXT, False)),
    "ListAndWatchResponse": (("devices", 1, "Device", True),),
    "ContainerAllocateRequest": (("devices_ids", 1, _TEXT, True),),
    "AllocateRequest": (("container_requests", 1, "ContainerAllocateRequest", True),),
    "Variable": (("key", 1, _TEXT, False), ("value", 2, _TEXT, False)),
    "ContainerAllocateResponse": (("envs", 1, "Variable", True),),
    "AllocateResponse": (("container_responses", 1, "ContainerAllocateResponse", True),),
}
"""Message → its fields: name, number, type or name of a message, whether it is repeated.

A map<string, string>, such as `envs`, is on the wire a repeated message of a key and a value.
"""


def _make_messages() -> dict[str, Any]:
    """Return the classes of the messages by name."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="fake_gpus.proto", package="fake_gpus", syntax="proto3")
    for message, fields in _FIELDS.items():
        made = file.message_type.add(name=message)
        for name, number, kind, repeated in fields:
            label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            one = made.field.add(name=name, number=number, label=label)
            if isinstance(kind, str):
                one.type, one.type_name = field.TYPE_MESSAGE, f".fake_gpus.{kind}"
            else:
                one.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"fake_gpus.{name}"))
        for name in _FIELDS
    }


MESSAGES = _make_messages()


class FakeGpus:
    """The plugin of one node."""

    def __init__(self, kubelet: Path) -> None:
        """Listen on a socket that the kubelet with this root folder finds."""
        self._socket = kubelet / "plugins_registry" / _SOCKET
        self._socket.unlink(missing_ok=True)  # of a killed plugin
        self._withdrawn, self._told = threading.Event(), threading.Event()
        # One thread is occupied by each connection's ListAndWatch.
        self._server = grpc.server(ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers(
            [
                _service("pluginregistration.Registration", self._registration()),
                _service("v1beta1.DevicePlugin", self._plugin()),
            ]
        )
        self._server.add_insecure_port(f"unix:{self._socket}")
        self._server.start()

    def _registration(self) -> dict[str, grpc.RpcMethodHandler]:
        info = MESSAGES["PluginInfo"](type="DevicePlugin", name=RESOURCE, supported_versions=["v1beta1"])
        return {
            "GetInfo": _method("Empty", lambda _: info),
            "NotifyRegistrationStatus": _method("RegistrationStatus", self._note_registration),
        }

    def _plugin(self) -> dict[str, grpc.RpcMethodHandler]:
        return {
            # DevicePluginOptions: without fields, no further calls are wanted
            "GetDevicePluginOptions": _method("Empty", lambda _: MESSAGES["Empty"]()),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self._list_devices, MESSAGES["Empty"].FromString, _serialize
            ),
            "Allocate": _method("AllocateRequest", _allocate),
        }

    def _note_registration(self, status: Any) -> Any:
        print(f"{self._socket}: {status.error or 'registered'}", flush=True)  # noqa: T201 - the log
        return MESSAGES["Empty"]()

    def _list_devices(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        devices = [MESSAGES["Device"](ID=device, health="Healthy") for device in DEVICES]
        yield MESSAGES["ListAndWatchResponse"](devices=devices)
        self._withdrawn.wait()
        yield MESSAGES["ListAndWatchResponse"]()
        self._told.set()

    def stop(self) -> None:
        """Withdraw the devices and stop.

        The kubelet would show the devices of a plugin that only disappears for five more minutes.
        """
        self._withdrawn.set()
        self._told.wait(5)
        self._server.stop(2).wait()
        self._socket.unlink(missing_ok=True)


def _serialize(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _method(request: str, answer: Callable[[Any], Any]) -> grpc.RpcMethodHandler:
    return grpc.unary_unary_rpc_method_handler(
        lambda message, _context: answer(message), MESSAGES[request].FromString, _serialize
    )


def _service(name: str, methods: Mapping[str, grpc.RpcMethodHandler]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(name, methods)


def _allocate(request: Any) -> Any:
    """Return the variable with the devices of each container, as NVIDIA's plugin does."""
    answers = []
    for container in request.container_requests:
        variable = MESSAGES["Variable"](
            key="NVIDIA_VISIBLE_DEVICES", value=",".join(sorted(container.devices_ids))
        )
        answers.append(MESSAGES["ContainerAllocateResponse"](envs=[variable]))
    return MESSAGES["AllocateResponse"](container_responses=answers)


def main(kubelets: Sequence[Path]) -> None:
    """Offer the devices at the kubelets with these root folders until SIGTERM."""
    plugins = [FakeGpus(kubelet) for kubelet in kubelets]
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
    for plugin in plugins:
        plugin.stop()


def gpus_of(cluster: Cluster) -> dict[str, int]:
    """Return the number of GPUs of each node that pods may use."""
    nodes = cluster.get("nodes", "default")
    return {one["metadata"]["name"]: int(one["status"]["allocatable"].get(RESOURCE, 0)) for one in nodes}


@contextlib.contextmanager
def offer_fake_gpus(cluster: Cluster, kubelets: Mapping[str, Path], folder: Path) -> Iterator[None]:
    """Give nodes pretend GPUs during the block, and wait until the API server shows them, and shows none afterwards.

    Args:
        cluster: the local cluster.
        kubelets: name of a node → root folder of its kubelet.
        folder: folder for the plugin's log.
    """
    log = folder / "fake-gpus.log"
    # setpriv: the plugin must not outlive a test that is killed
    argv = ["setpriv", "--pdeathsig", "TERM", sys.executable, "-m", "testkit.fake_gpus", *kubelets.values()]
    with (
        log.open("wb") as stream,
        subprocess.Popen(argv, cwd=ROOT, env=cluster.env, stdout=stream, stderr=stream) as child,
    ):
        try:
            _wait_for(cluster, dict.fromkeys(kubelets, len(DEVICES)), log)
            yield
        finally:
            child.terminate()
            child.wait(30)
            _wait_for(cluster, dict.fromkeys(kubelets, 0), log)


def _wait_for(cluster: Cluster, expected: Mapping[str, int], log: Path) -> None:
    def is_shown() -> bool:
        found = gpus_of(cluster)
        return all(found[node] == count for node, count in expected.items())

    until(is_shown, f"the nodes show {expected} of {RESOURCE}", _SECONDS, 0.5, log.read_text)


if __name__ == "__main__":
    # Blocked before the first thread starts, which inherits this: else SIGTERM could end the process in a thread.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    main([Path(argument) for argument in sys.argv[1:]])
