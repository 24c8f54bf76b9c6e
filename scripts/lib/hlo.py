"""What a compiled program sends between devices, from its text (HLO)."""

import re
from collections import Counter

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
BYTES = {
    "pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8,
    "u64": 8, "f64": 8,
}  # fmt: skip
INSTRUCTION = re.compile(rf"= (.+?) ({'|'.join(KINDS)})(-start)?\((.*)")
SHAPE = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")


def collective_bytes(text: str, devices: int) -> dict[str, int]:
    """Return, by kind, how many bytes a device sends in one run of a program that `devices` of them run.

    As ring algorithms do it (Thakur, Rabenseifner and Gropp 2005), with n devices in a group and S bytes of a whole
    array: all-reduce 2 S (n-1)/n, all-gather, reduce-scatter and all-to-all S (n-1)/n, collective-permute S. What
    stands in the body of a loop is counted once.
    """
    sent: Counter = Counter()
    for line in text.splitlines():
        found = INSTRUCTION.search(line)
        if not found:
            continue
        result, kind, start, rest = found.groups()
        sizes = [size(*shape) for shape in SHAPE.findall(result)]
        if start and kind != "all-reduce":
            sizes = sizes[len(sizes) // 2 :] if kind != "collective-permute" else sizes[:1]  # operands, then results
        group = group_size(rest, devices)
        whole = sum(sizes) * (group if kind == "reduce-scatter" else 1)
        share = 1.0 if kind == "collective-permute" else (group - 1) / group
        sent[kind] += round(whole * share * (2 if kind == "all-reduce" else 1))
    return {kind: sent[kind] for kind in KINDS if sent[kind]}


def size(kind: str, dimensions: str) -> int:
    """Return the bytes of an array such as f32[2,128]; 0 for what is none."""
    count = 1
    for dimension in filter(None, dimensions.split(",")):
        count *= int(dimension)
    return count * BYTES.get(kind, 0)


def group_size(rest: str, devices: int) -> int:
    """Return how many devices take part in each group of a collective, by its attributes."""
    iota = re.search(r"replica_groups=\[\d+,(\d+)\]", rest)
    if iota:
        return int(iota[1])
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", rest)
    return len(listed[1].split(",")) if listed else devices
