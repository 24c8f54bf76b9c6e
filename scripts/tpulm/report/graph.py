"""The graph of the workflow as a drawing: stages in lanes, and every rule below those that it waits for."""

from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup

# Stages side by side; those of a lane are one below the other.
LANES = (("corpus", "tokenizer", "tfrecords"), ("mlm",), ("base", "finetune"))
# In pixels: of a rule's box, between boxes, above the first one, and of a lane.
WIDTH, HEIGHT, GAP, TOP, LANE = 186, 28, 30, 26, 232
MARGIN = 16  # on both sides of a box


def acyclic(edges: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Return what each node comes after, without edges that lead back to a node on the way to it."""
    before: dict[str, set[str]] = {}
    for one, other in sorted(edges):
        before.setdefault(one, set())
        before.setdefault(other, set())
        if one != other and one not in before[other] and not reaches(before, one, other):
            before[other].add(one)
    return before


def reaches(before: Mapping[str, set[str]], node: str, ancestor: str) -> bool:
    """Return whether a node comes after another one, directly or not."""
    queue, seen = [node], {node}
    while queue:
        new = before[queue.pop()] - seen
        if ancestor in new:
            return True
        seen |= new
        queue += new
    return False


def reduced(before: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the same order with the fewest edges: those that no longer way replaces (transitive reduction)."""
    return {
        node: {
            one
            for one in parents
            if not any(other != one and reaches(before, other, one) for other in parents)
        }
        for node, parents in before.items()
    }  # fmt: skip


def rows_of(before: Mapping[str, set[str]], stage: Mapping[str, str], order: Sequence[str]) -> dict[str, int]:
    """Return the row of each node: below all that it comes after, and alone in its lane.

    Where nothing speaks against it, the stages of a lane are one below the other, in their order.
    """
    after = {node: set(parents) for node, parents in before.items()}
    for node in sorted(after):
        for other in sorted(after):
            earlier = order.index(stage[other]) < order.index(stage[node])
            if earlier and lane_of(stage[other]) == lane_of(stage[node]) and not reaches(after, other, node):
                after[node].add(other)
    rows: dict[str, int] = {}
    taken: set[tuple[int, int]] = set()
    while len(rows) < len(after):
        for node in sorted(node for node, parents in after.items() if node not in rows and parents <= set(rows)):
            row = max((rows[parent] + 1 for parent in after[node]), default=0)
            while (lane_of(stage[node]), row) in taken:
                row += 1
            taken.add((lane_of(stage[node]), row))
            rows[node] = row
    return rows


def lane_of(stage: str) -> int:
    """Return the lane of a stage; what measures and tells is in the last one."""
    return next((number for number, stages in enumerate(LANES) if stage in stages), len(LANES))


def drawing(edges: Iterable[tuple[str, str]], stages: Mapping[str, str], jobs: Mapping[str, int]) -> Markup:
    """Return the graph as SVG.

    edges   pairs of rules, the second of which waits for the first
    stages  the stage of each rule; those of a lane are in their order
    jobs    how many jobs each rule had, as jobs.json says
    """
    before = reduced(acyclic(edges))
    stage = {rule: stages.get(rule, "other") for rule in before}
    order = [name for name in dict.fromkeys([*stages.values(), "other"]) if name in stage.values()]
    rows = rows_of(before, stage, order)
    lanes = sorted({lane_of(name) for name in order})
    x = {rule: lanes.index(lane_of(stage[rule])) * LANE + MARGIN for rule in before}
    y = {rule: TOP + row * (HEIGHT + GAP) for rule, row in rows.items()}
    width, height = len(lanes) * LANE, TOP + (max(rows.values(), default=0) + 1) * (HEIGHT + GAP)
    parts = [f'<svg class="graph" viewBox="0 0 {width} {height}" width="{width}" height="{height}" aria-hidden="true">']
    for name in order:
        tops = [y[rule] for rule in before if stage[rule] == name]
        left = lanes.index(lane_of(name)) * LANE + 2
        shape = (
            f'x="{left}" y="{min(tops) - 22}" width="{LANE - 6}" height="{max(tops) - min(tops) + HEIGHT + 28}" rx="6"'
        )
        parts.append(
            f'<g class="stage"><rect {shape}/><text x="{left + MARGIN - 2}" y="{min(tops) - 7}">{name}</text></g>'
        )
    for rule, parents in sorted(before.items()):
        for parent in sorted(parents):
            path = edge(x[parent], y[parent], x[rule], y[rule])
            parts.append(f'<path d="{path}" data-from="{parent}" data-to="{rule}"/>')
    for rule in sorted(before):
        times = jobs.get(rule, 1)
        count = f'<tspan class="times"> ×{times}</tspan>' if times > 1 else ""
        box = f'x="{x[rule]}" y="{y[rule]}" width="{WIDTH}" height="{HEIGHT}" rx="4"'
        text = f'<text x="{x[rule] + 9}" y="{y[rule] + 18}">{rule}{count}</text>'
        parts.append(f'<g class="rule" data-rule="{rule}"><rect {box}/>{text}</g>')
    return Markup("\n".join([*parts, "</svg>"]))


def edge(x: float, y: float, to_x: float, to_y: float) -> str:
    """Return the path of an edge, from the bottom of a box to the top of another or, further off, beside its lane."""
    if x == to_x and to_y - y > HEIGHT + GAP:  # past the boxes between them
        side, bend = x + WIDTH, min(8 + (to_y - y) / 30, LANE - WIDTH - MARGIN - 4)
        return f"M{side} {y + HEIGHT / 2}C{side + bend} {y + HEIGHT} {side + bend} {to_y} {side} {to_y + HEIGHT / 2}"
    start, end = x + WIDTH / 2, to_x + WIDTH / 2
    bend = max(GAP, (to_y - y - HEIGHT) / 3)
    return f"M{start} {y + HEIGHT}C{start} {y + HEIGHT + bend} {end} {to_y - bend} {end} {to_y}"
