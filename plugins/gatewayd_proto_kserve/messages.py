"""Messages of the service ``inference.GRPCInferenceService``, built when this module is imported.

Names and numbers of fields are those of the Open Inference Protocol, and of Triton for
``ModelStreamInfer``. They have a descriptor pool of their own: a client's generated module of the
same names may be imported in this process.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"

# A message a line, those within others after them; "map" is to InferParameter.
_MESSAGES = """
ServerLiveRequest:
ServerLiveResponse: bool live = 1
ServerReadyRequest:
ServerReadyResponse: bool ready = 1
ModelReadyRequest: string name = 1; string version = 2
ModelReadyResponse: bool ready = 1
ServerMetadataRequest:
ServerMetadataResponse: string name = 1; string version = 2; repeated string extensions = 3
ModelMetadataRequest: string name = 1; string version = 2
ModelMetadataResponse: string name = 1; repeated string versions = 2; string platform = 3;\
 repeated ModelMetadataResponse.TensorMetadata inputs = 4;\
 repeated ModelMetadataResponse.TensorMetadata outputs = 5
ModelMetadataResponse.TensorMetadata: string name = 1; string datatype = 2; repeated int64 shape = 3
InferParameter: oneof bool bool_param = 1; oneof int64 int64_param = 2;\
 oneof string string_param = 3; oneof double double_param = 4; oneof uint64 uint64_param = 5
InferTensorContents: repeated bool bool_contents = 1; repeated int32 int_contents = 2;\
 repeated int64 int64_contents = 3; repeated uint32 uint_contents = 4;\
 repeated uint64 uint64_contents = 5; repeated float fp32_contents = 6;\
 repeated double fp64_contents = 7; repeated bytes bytes_contents = 8
ModelInferRequest: string model_name = 1; string model_version = 2; string id = 3;\
 map parameters = 4; repeated ModelInferRequest.InferInputTensor inputs = 5;\
 repeated ModelInferRequest.InferRequestedOutputTensor outputs = 6;\
 repeated bytes raw_input_contents = 7
ModelInferRequest.InferInputTensor: string name = 1; string datatype = 2;\
 repeated int64 shape = 3; map parameters = 4; InferTensorContents contents = 5
ModelInferRequest.InferRequestedOutputTensor: string name = 1; map parameters = 2
ModelInferResponse: string model_name = 1; string model_version = 2; string id = 3;\
 map parameters = 4; repeated ModelInferResponse.InferOutputTensor outputs = 5;\
 repeated bytes raw_output_contents = 6
ModelInferResponse.InferOutputTensor: string name = 1; string datatype = 2;\
 repeated int64 shape = 3; map parameters = 4; InferTensorContents contents = 5
ModelStreamInferResponse: string error_message = 1; ModelInferResponse infer_response = 2
"""


def _file() -> FileDescriptorProto:
    """Return the descriptor of all messages."""
    file = FileDescriptorProto(name="gatewayd/kserve.proto", package=PACKAGE, syntax="proto3")
    made: dict[str, DescriptorProto] = {}
    for line in _MESSAGES.strip().splitlines():
        path, _, fields = line.partition(":")
        outer, _, name = path.rpartition(".")
        message = made[outer].nested_type.add() if outer else file.message_type.add()
        message.name, made[path] = name, message
        for field in filter(None, fields.split(";")):
            _add_field(message, path, field)
    return file


def _add_field(message: DescriptorProto, path: str, text: str) -> None:
    *kinds, name, _, number = text.split()
    field = message.field.add(name=name, number=int(number))
    repeats = kinds[0] in ("repeated", "map")
    field.label = (
        FieldDescriptorProto.LABEL_REPEATED if repeats else FieldDescriptorProto.LABEL_OPTIONAL
    )
    if kinds[0] == "oneof":
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0
    if kinds[0] == "map":
        entry = message.nested_type.add(name="ParametersEntry")
        entry.options.map_entry = True
        _add_field(entry, "", "string key = 1")
        _add_field(entry, "", "InferParameter value = 2")
        kinds = [f"{path}.ParametersEntry"]
    if kinds[-1][0].isupper():
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{kinds[-1]}"
    else:
        field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kinds[-1].upper()}")


_POOL = DescriptorPool()
_POOL.Add(_file())


def message_class(name: str) -> Any:  # noqa: ANN401 - made here, so that no type checker knows it
    """Return the class of a message.

    Args:
        name: without the package.
    """
    return GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


InferRequest = message_class("ModelInferRequest")
InferResponse = message_class("ModelInferResponse")
StreamInferResponse = message_class("ModelStreamInferResponse")
