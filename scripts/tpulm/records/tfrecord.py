"""Write and read TFRecord files of tf.train.Example without TensorFlow.

A file is a sequence of records, each framed as (TensorFlow, tensorflow/core/lib/io/record_writer.h)

    uint64 length | uint32 masked CRC-32C of length | data | uint32 masked CRC-32C of data      little-endian

and the data here is a tf.train.Example with int64 features of one length, the same for all records: `input_ids` and
`attention_mask`, 0 for padding. Ids take one to five bytes, so records differ in size: NAME.index, next to
NAME.tfrecord, has the records + 1 offsets at which they begin and the last one ends, uint64, little-endian.
"""

import hashlib
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import google_crc32c
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tpulm.core.errors import UserError
from tpulm.core.files import atomic_write

FRAME = 16  # bytes around the data of a record: length, its checksum, the data's checksum
HEAD = 12
CRC = struct.Struct("<I")
LENGTH = struct.Struct("<Q")
Checksum = TypeVar("Checksum", int, np.ndarray)


def masked(crc: Checksum) -> Checksum:
    """Return a checksum, or int64 of several, rotated right by 15 bits plus a constant.

    Source: tensorflow/core/lib/hash/crc32c.h
    """
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def masked_crc(data: bytes) -> int:
    """Return the masked CRC-32C of `data`."""
    return masked(google_crc32c.value(data))


def frame(records: Sequence[bytes]) -> bytes:
    """Return records with their frames, as they are in a TFRecord file."""
    lengths = {size: LENGTH.pack(size) for size in set(map(len, records))}
    heads = {size: length + CRC.pack(masked_crc(length)) for size, length in lengths.items()}
    sums = np.fromiter(map(google_crc32c.value, records), np.int64, len(records))
    tails = masked(sums).astype("<u4").tobytes()
    parts = ((heads[len(data)], data, tails[4 * row : 4 * row + 4]) for row, data in enumerate(records))
    return b"".join(chain.from_iterable(parts))


def serialise(features: dict[str, np.ndarray]) -> list[bytes]:
    """Return records as serialised tf.train.Examples, as TensorFlow writes them with sorted keys.

    features  values from 0 to 2**31 - 1 by name, int32 of shape [records, values]
    """
    names = sorted(features)
    values = [varints(features[name]) for name in names]
    heads: dict[tuple[int, ...], list[bytes]] = {}
    records = []
    for sizes, *parts in zip(
        zip(*(np.diff(ends).tolist() for _, ends in values), strict=True), *map(row_bytes, values), strict=True
    ):
        if sizes not in heads:
            heads[sizes] = example_heads(names, sizes)
        records.append(b"".join(chain.from_iterable(zip(heads[sizes], parts, strict=True))))
    return records


def varints(values: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Return integers as protobuf's varints, and the offsets at which rows begin and the last one ends.

    values  int32 of shape [rows, columns], none negative. A varint has seven bits per byte, the lowest first; the high
            bit of each byte but the last is 1 (https://protobuf.dev/programming-guides/encoding)
    """
    rows, columns = values.shape
    flat = values.ravel()
    size = max(1, -(-int(flat.max(initial=0)).bit_length() // 7))  # bytes of the varint of the largest value
    if size == 1:
        return flat.astype(np.uint8).tobytes(), columns * np.arange(rows + 1)
    # There is a column per byte; bytes after a value's last one are not used.
    data = np.empty((len(flat), size), np.uint8)
    used = np.ones((len(flat), size), bool)
    for byte in range(size):
        data[:, byte] = (flat >> 7 * byte) & 0x7F
        if byte:
            used[:, byte] = flat >= 1 << 7 * byte
            data[:, byte - 1] |= used[:, byte].view(np.uint8) << 7
    sizes = used.reshape(rows, columns * size).sum(axis=1)
    return data[used].tobytes(), np.concatenate([[0], np.cumsum(sizes)])


def row_bytes(values: tuple[bytes, np.ndarray]) -> Iterator[bytes]:
    """Yield the bytes of each row of `varints`."""
    data, ends = values
    bounds = ends.tolist()
    return (data[start:stop] for start, stop in zip(bounds[:-1], bounds[1:], strict=True))


def varint(value: int) -> bytes:
    """Return one integer as a varint, as `varints` does."""
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def example_heads(names: list[str], sizes: tuple[int, ...]) -> list[bytes]:
    """Return the bytes before the values of each feature in a tf.train.Example; sizes  bytes of its values

    In proto3 a field is its number x 8 + 2, its size and its content; a map is repeated entries of key (1), value (2).
    """
    entries = []
    for name, size in zip(names, sizes, strict=True):
        key = name.encode("utf-8")
        packed = b"\x0a" + varint(size)  # Int64List.value = 1
        int64_list = b"\x1a" + varint(len(packed) + size) + packed  # Feature.int64_list = 3
        value = b"\x12" + varint(len(int64_list) + size) + int64_list  # value of an entry of Features.feature
        head = b"\x0a" + varint(len(key)) + key + value
        entries.append(b"\x0a" + varint(len(head) + size) + head)  # Features.feature = 1
    total = sum(map(len, entries)) + sum(sizes)
    entries[0] = b"\x0a" + varint(total) + entries[0]  # Example.features = 1
    return entries


def write_records(path: str | Path, index: str | Path, blocks: Iterable[dict[str, np.ndarray]]) -> dict[str, int | str]:
    """Write records (blocks as `serialise` takes them) as a TFRecord file with its index, each whole or not.

    Returns records, bytes and sha256 of the file, and index_sha256.
    """
    places, place, digest = [np.zeros(1, np.int64)], 0, hashlib.sha256()
    with atomic_write(path) as partial, open(partial, "wb", buffering=1 << 20) as file:
        for block in blocks:
            records = serialise(block)
            framed = frame(records)
            file.write(framed)
            digest.update(framed)
            sizes = np.fromiter(map(len, records), np.int64, len(records)) + FRAME
            places.append(place + np.cumsum(sizes))
            place += len(framed)
    offsets = np.concatenate(places)
    table = offsets.astype("<u8").tobytes()
    with atomic_write(index) as partial:
        partial.write_bytes(table)
    return {
        "records": len(offsets) - 1,
        "bytes": place,
        "sha256": digest.hexdigest(),
        "index_sha256": hashlib.sha256(table).hexdigest(),
    }


def intact(framed: bytes) -> bool:
    """Return whether the length and the checksums in a record's frame are right."""
    data = framed[HEAD:-4]
    return (
        len(framed) >= FRAME
        and LENGTH.unpack_from(framed)[0] == len(data)
        and CRC.unpack_from(framed, 8)[0] == masked_crc(framed[:8])
        and CRC.unpack_from(framed, len(framed) - 4)[0] == masked_crc(data)
    )


def scan(path: str | Path, name: str | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield the end of the frame and the data of each record of a file in order, without an index.

    name  of the file in messages, if it is a copy

    Raises UserError naming the first damaged range of bytes.
    """
    size, place = os.path.getsize(path), 0
    with open(path, "rb") as file:
        while head := file.read(HEAD):
            damaged = f"{name or path} is corrupt at bytes {place} to"
            if len(head) < HEAD:
                raise UserError(f"{damaged} {size}: the file ends within the header of a record.")
            if CRC.unpack_from(head, 8)[0] != masked_crc(head[:8]):
                raise UserError(f"{damaged} {place + HEAD}: the checksum of the length of a record is wrong.")
            stop = place + FRAME + LENGTH.unpack_from(head)[0]
            if stop > size:
                raise UserError(f"{damaged} {size}: the file ends within a record.")
            body = file.read(stop - place - HEAD)
            if CRC.unpack_from(body, len(body) - 4)[0] != masked_crc(body[:-4]):
                raise UserError(f"{damaged} {stop}: the checksum of a record is wrong.")
            yield stop, body[:-4]
            place = stop


def example_class() -> Any:
    """Return the message class of tf.train.Example; TensorFlow may register the same one in its own pool."""
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
