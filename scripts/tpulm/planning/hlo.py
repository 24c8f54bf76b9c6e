"""Bytes that a compiled program sends between devices, from its HLO text."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
BYTES = {
    "pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8,
    "u64": 8, "f64": 8,
}  # fmt: skip
COMPUTATION = re.compile(r"(?:ENTRY )?%([\w.-]+) \(.*\{$")
CALL = re.compile(r"\b(calls|to_apply|body|condition|\w+_computations?)=\{?(%[\w.-]+(?:, %[\w.-]+)*)")
INSTRUCTION = re.compile(rf"= (.+?) ({'|'.join(KINDS)})(-start)?\((.*)")
SHAPE = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")
CHAIN = re.compile(r'channel_id=(\d+).*chain_id="(\d+)"')


def collective_bytes(text: str, devices: int, turns: Sequence[int] = ()) -> dict[str, int]:
    """Return, by kind, how many bytes a device sends in one run of a program that `devices` of them run.

    turns  how often to count what stands in the body of a loop: in the outermost loops, in those inside them, and
           so on; once in loops that are deeper still

    As ring algorithms do it (Thakur, Rabenseifner and Gropp 2005), with n devices in a group and S bytes of a whole
    array: all-reduce 2 S (n-1)/n, all-gather, reduce-scatter and all-to-all S (n-1)/n, collective-permute S.
    """
    sent: Counter = Counter()
    seen = set()
    for name, depth, lines in computations(text):
        for result, kind, start, rest in (found.groups() for found in map(INSTRUCTION.search, lines) if found):
            # An asynchronous collective stands once in each of the fusions that it runs beside. Its channel alone does
            # not name it: all collectives that the compiler has put together have channel 1.
            chain = CHAIN.search(rest)
            if chain:
                if chain.groups() in seen:
                    continue
                seen.add(chain.groups())
            sizes = [size(*shape) for shape in SHAPE.findall(result)]
            if start and kind != "all-reduce":  # operands, then results
                sizes = sizes[len(sizes) // 2 :] if kind != "collective-permute" else sizes[:1]
            group = group_size(rest, devices)
            whole = sum(sizes) * (group if kind == "reduce-scatter" else 1)
            if name.startswith("all-reduce-scatter"):
                kind = "reduce-scatter"  # on TPUs a fusion: an all-reduce of the whole array, and a slice of it
            share = 1.0 if kind == "collective-permute" else (group - 1) / group
            sent[kind] += round(whole * share * (2 if kind == "all-reduce" else 1)) * math.prod(turns[:depth])
    return {kind: sent[kind] for kind in KINDS if sent[kind]}


def computations(text: str) -> Iterator[tuple[str, int, list[str]]]:
    """Yield the computations of a program: name, in how many loops, one inside the other, it runs, and its lines."""
    lines: dict[str, list[str]] = {"": []}
    name = ""
    for line in text.splitlines():
        head = COMPUTATION.match(line)
        name = head[1] if head else name
        lines.setdefault(name, []).append(line)
    depths: Counter = Counter()
    for name in reversed(lines):  # a computation stands before those that call it
        for how, called in CALL.findall("\n".join(lines[name])):
            for other in called.replace("%", "").split(", "):
                depths[other] = max(depths[other], depths[name] + (how == "body"))
        yield name, depths[name], lines[name]


def size(kind: str, dimensions: str) -> int:
    """Return the bytes of an array such as f32[2,128]; 0 for what is none."""
    return math.prod(map(int, filter(None, dimensions.split(",")))) * BYTES.get(kind, 0)


def group_size(rest: str, devices: int) -> int:
    """Return how many devices take part in each group of a collective, by its attributes.

    XLA writes groups as [groups, devices of each]<=..., as lists of devices, or as a mesh's axes, 'a':(i)n being n
    devices along a part of axis a.
    """
    iota = re.search(r"replica_groups=\[\d+,(\d+)\]", rest)
    if iota:
        return int(iota[1])
    mesh = re.search(r"replica_groups=mesh\[([^]]*)\][^{]*\{([^}]*)\}", rest)
    if mesh:
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
        axes = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", mesh[2])
        return math.prod(int(part or sizes[axis]) for axis, part in axes)
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", rest)
    return len(listed[1].split(",")) if listed else devices
