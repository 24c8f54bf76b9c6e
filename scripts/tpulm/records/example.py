"""tf.train.Example as protobuf reads it, without TensorFlow. To write records does not take it: see `tfrecord`."""

from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def example_class() -> Any:
    """Return the message class of tf.train.Example with int64 features (tensorflow/core/example/*.proto).

    The descriptor is in a pool of its own: TensorFlow may register its own one in the same process.
    """
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")
    int64_list = file.message_type.add(name="Int64List")
    int64_list.field.add(name="value", number=1, type=field.TYPE_INT64, label=field.LABEL_REPEATED)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    feature.field.add(
        name="int64_list", number=3, type=field.TYPE_MESSAGE, label=field.LABEL_OPTIONAL,
        type_name=".tensorflow.Int64List", oneof_index=0,
    )  # fmt: skip
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(
        name="value", number=2, type=field.TYPE_MESSAGE, label=field.LABEL_OPTIONAL, type_name=".tensorflow.Feature"
    )
    features.field.add(
        name="feature", number=1, type=field.TYPE_MESSAGE, label=field.LABEL_REPEATED,
        type_name=".tensorflow.Features.FeatureEntry",
    )  # fmt: skip
    example = file.message_type.add(name="Example")
    example.field.add(
        name="features", number=1, type=field.TYPE_MESSAGE, label=field.LABEL_OPTIONAL,
        type_name=".tensorflow.Features",
    )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


Example = example_class()


def decode(data: bytes, name: str = "input_ids") -> np.ndarray:
    """Return a feature of a serialised tf.train.Example, int64 of shape [values]."""
    return np.array(Example.FromString(data).features.feature[name].int64_list.value, np.int64)
