"""Pulumi's provider protocol over gRPC, on top of `resource_model.Model`.

The plugin runs in the process of the tests, and the engine connects to it (`PULUMI_DEBUG_PROVIDERS`), so that the
engine's commands need not wait for its start.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any, TypeVar

import grpc
from botocore.exceptions import BotoCoreError, ClientError
from google.protobuf import empty_pb2
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc

from testkit.aws_emulator import invokes
from testkit.aws_emulator.account import Account, AwsError
from testkit.aws_emulator.property_values import Props, from_struct, has_unknown, to_struct
from testkit.aws_emulator.resource_model import Model
from testkit.aws_emulator.sdk_schema import UnknownTypeError

VERSION = "7.51.1"
_KINDS = {
    "add": ("ADD", "ADD_REPLACE"),
    "delete": ("DELETE", "DELETE_REPLACE"),
    "update": ("UPDATE", "UPDATE_REPLACE"),
}
Answer = TypeVar("Answer")


def _decoded(value: Any) -> Any:
    """Return the value of a provider setting; non-string settings arrive as JSON."""
    if isinstance(value, str) and value[:1] in "{[":
        return json.loads(value)
    return value


class Plugin(provider_pb2_grpc.ResourceProviderServicer):
    """One configured provider."""

    def __init__(self, account: Account, project: Path) -> None:
        self.account = account
        self.project = project
        self.model: Model | None = None

    def _do(self, context: Any, call: Callable[[Model], Answer]) -> Answer:
        """Run one operation; report a rejection by the cloud as the error text for the user."""
        try:
            assert self.model is not None, "the engine configures a provider first"
            return call(self.model)
        except (AwsError, UnknownTypeError) as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except Exception as error:  # a bug in the emulator: show the traceback
            context.abort(grpc.StatusCode.INTERNAL, f"emulator: {error!r}\n{traceback.format_exc()}")
        raise AssertionError("abort raises")

    # --- the provider

    def Attach(self, request: Any, context: Any) -> Any:  # noqa: N802
        return empty_pb2.Empty()  # the engine connected to this server through PULUMI_DEBUG_PROVIDERS

    def GetPluginInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        return plugin_pb2.PluginInfo(version=VERSION)

    def DiffConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        same = from_struct(request.olds) == from_struct(request.news)
        kind = provider_pb2.DiffResponse
        return kind(changes=kind.DIFF_NONE if same else kind.DIFF_SOME)

    def Configure(self, request: Any, context: Any) -> Any:  # noqa: N802
        settings = {key: _decoded(value) for key, value in from_struct(request.args).items()}
        tags = (settings.get("defaultTags") or {}).get("tags") or {}
        self.model = Model(self.account, settings["region"], {} if has_unknown(tags) else tags, self.project)
        return provider_pb2.ConfigureResponse(acceptSecrets=False, supportsPreview=True)

    def Invoke(self, request: Any, context: Any) -> Any:  # noqa: N802
        arguments = from_struct(request.args)

        def answer(model: Model) -> Props:
            self.account.enter(request.tok, "invoke")
            try:
                return invokes.invoke(model.cloud, request.tok, arguments)
            except (ClientError, BotoCoreError, AwsError) as error:
                raise AwsError(f"{request.tok}: {error}") from error

        result = self._do(context, answer)
        return provider_pb2.InvokeResponse(**{"return": to_struct(result)})

    # --- resources

    def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        kind, name = _kind_and_name(request.urn)
        old, new = from_struct(request.olds), from_struct(request.news)
        inputs, failed = self._do(
            context, lambda model: model.check(kind, name, old, new, request.randomSeed)
        )
        failures = [provider_pb2.CheckFailure(property=path, reason=reason) for path, reason in failed]
        return provider_pb2.CheckResponse(inputs=to_struct(inputs), failures=failures)

    def Diff(self, request: Any, context: Any) -> Any:  # noqa: N802
        kind, _ = _kind_and_name(request.urn)
        state = from_struct(request.olds)
        old, new = from_struct(request.old_inputs), from_struct(request.news)
        ignored = list(request.ignoreChanges)
        found = self._do(context, lambda model: model.diff(kind, old, new, ignored, state.get("region")))
        detail = {}
        for path, what in found.paths.items():
            label = getattr(provider_pb2.PropertyDiff, _KINDS[what][path in found.replaces])
            detail[path] = provider_pb2.PropertyDiff(kind=label, inputDiff=True)
        answer = provider_pb2.DiffResponse
        return answer(
            changes=answer.DIFF_SOME if found.paths else answer.DIFF_NONE,
            replaces=found.replaces,
            diffs=sorted({path.split(".")[0].split("[")[0] for path in found.paths}),
            deleteBeforeReplace=found.delete_first,
            detailedDiff=detail,
            hasDetailedDiff=True,
        )

    def Create(self, request: Any, context: Any) -> Any:  # noqa: N802
        kind, _ = _kind_and_name(request.urn)
        inputs = from_struct(request.properties)
        if request.preview:
            planned = self._do(context, lambda model: model.preview(kind, inputs))
            return provider_pb2.CreateResponse(id="", properties=to_struct(planned))
        rid, outputs = self._do(context, lambda model: model.create(kind, request.urn, inputs))
        return provider_pb2.CreateResponse(id=rid, properties=to_struct(outputs))

    def Read(self, request: Any, context: Any) -> Any:  # noqa: N802
        kind, _ = _kind_and_name(request.urn)
        known = from_struct(request.inputs)
        found = self._do(context, lambda model: model.read(kind, request.urn, request.id, known))
        if found is None:
            return provider_pb2.ReadResponse()
        inputs, outputs = found
        return provider_pb2.ReadResponse(
            id=request.id, inputs=to_struct(inputs), properties=to_struct(outputs)
        )

    def Update(self, request: Any, context: Any) -> Any:  # noqa: N802
        kind, _ = _kind_and_name(request.urn)
        old, new = from_struct(request.old_inputs), from_struct(request.news)
        state = from_struct(request.olds)
        if request.preview:
            outputs = self._do(context, lambda model: model.preview_update(kind, old, new, state))
        else:
            outputs = self._do(context, lambda model: model.update(kind, request.urn, request.id, old, new))
        return provider_pb2.UpdateResponse(properties=to_struct(outputs))

    def Delete(self, request: Any, context: Any) -> Any:  # noqa: N802
        kind, _ = _kind_and_name(request.urn)
        old = from_struct(request.old_inputs)
        self._do(context, lambda model: model.delete(kind, request.urn, request.id, old))
        return empty_pb2.Empty()


def _kind_and_name(urn: str) -> tuple[str, str]:
    parts = urn.split("::")
    return parts[2].rpartition("$")[2], parts[-1]


def serve(account: Account, project: Path) -> tuple[grpc.Server, int]:
    """Start a server on loopback; return it and its port. Each engine command configures the provider again.

    `project` is the program's folder.
    """
    server = grpc.server(
        futures.ThreadPoolExecutor(max_workers=32),
        options=[("grpc.max_receive_message_length", 400 * 1024 * 1024)],
    )
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(Plugin(account, project), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port
