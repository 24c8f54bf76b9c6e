"""The time of a step: what of a compiled program is counted, what overlaps, and how it compares with measurements."""

import pytest
from conftest import ROOT
from tpulm.core.accelerators import topology
from tpulm.models.attention_cost import call_cost
from tpulm.planning import estimate
from tpulm.planning.estimate import step_estimate
from tpulm.planning.hlo import parse
from tpulm.planning.links import Links, groups_of
from tpulm.planning.totals import total_work
from tpulm.planning.work import flops, hbm_bytes

pytestmark = pytest.mark.unit

USES = ("fitted", "held-out")
V5E = topology("v5e-8")
EIGHT = [[x, y, 0] for y in range(4) for x in range(2)]  # chips of v5e:2x4


def entry(*lines: str, before: str = "") -> str:
    """Return the text of a program with these instructions, after other computations."""
    return "\n".join([before, "ENTRY %main (p: f32[8]) -> f32[8] {", *(f"  {line}" for line in lines), "}", ""])


def moved(text: str) -> dict[str, int]:
    """Return what the instructions of an entry move across HBM, by name, zeros aside."""
    module = parse(text)
    found = {name: hbm_bytes(module, module.entry, i) for name, i in module.entry.instructions.items()}
    return {name: size for name, size in found.items() if size}


def test_what_lies_in_vmem_does_not_cross_hbm():
    """As v5e's compiler prints it: S(1) is VMEM; a copy between the two counts once, where it starts."""
    text = entry(
        "%p.1 = bf16[256,128]{1,0:T(8,128)(2,1)} parameter(0)",
        "%copy-start.1 = (bf16[256,128]{1,0:T(8,128)(2,1)S(1)}, bf16[256,128]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) "
        "copy-start(%p.1)",
        "%copy-done.1 = bf16[256,128]{1,0:T(8,128)(2,1)S(1)} copy-done(%copy-start.1)",
        "%slice-start.1 = ((bf16[256,128]{1,0:T(8,128)(2,1)}), bf16[64,128]{1,0:T(8,128)(2,1)S(1)}, s32[]{:S(2)}) "
        "slice-start(%p.1), slice={[0:64], [0:128]}",
        "%slice-done.1 = bf16[64,128]{1,0:T(8,128)(2,1)S(1)} slice-done(%slice-start.1)",
        "%negate.1 = bf16[256,128]{1,0:T(8,128)(2,1)S(1)} negate(%copy-done.1)",
        "%add.1 = bf16[256,128]{1,0:T(8,128)(2,1)} add(%negate.1, %p.1)",
        "%bitcast.1 = bf16[128,256]{1,0:T(8,128)(2,1)} bitcast(%add.1)",
        "ROOT %tuple.1 = (bf16[128,256]{1,0:T(8,128)(2,1)}) tuple(%bitcast.1)",
    )
    whole = 2 * 256 * 128
    assert moved(text) == {"copy-start.1": whole, "slice-start.1": whole // 4, "add.1": 2 * whole}


def test_of_a_fusion_only_what_it_reads_and_writes_counts():
    """A slice of a parameter; an update in place; a buffer that only passes through."""
    inner = """
%fused (param_0: f32[4,512], param_1: f32[512], param_2: f32[8,8], param_3: s32[]) -> (f32[4,512], f32[8,8], f32[512]) {
  %param_0 = f32[4,512]{1,0:T(4,128)} parameter(0)
  %param_3 = s32[]{:T(128)S(6)} parameter(3)
  %zero = s32[]{:T(128)} constant(0)
  %row = f32[1,512]{1,0:T(1,128)} dynamic-slice(%param_0, %param_3, %zero), dynamic_slice_sizes={1,512}
  %flat = f32[512]{0:T(512)} bitcast(%row)
  %param_1 = f32[512]{0:T(512)} parameter(1)
  %sum = f32[512]{0:T(512)} add(%flat, %param_1)
  %back = f32[1,512]{1,0:T(1,128)} bitcast(%sum)
  %updated = f32[4,512]{1,0:T(4,128)} dynamic-update-slice(%param_0, %back, %param_3, %zero)
  %param_2 = f32[8,8]{1,0:T(8,128)} parameter(2)
  ROOT %all = (f32[4,512]{1,0:T(4,128)}, f32[8,8]{1,0:T(8,128)}, f32[512]{0:T(512)}) tuple(%updated, %param_2, %sum)
}
"""
    text = entry(
        "%a = f32[4,512]{1,0:T(4,128)} parameter(0)",
        "%b = f32[512]{0:T(512)} parameter(1)",
        "%c = f32[8,8]{1,0:T(8,128)} parameter(2)",
        "%d = s32[]{:T(128)S(6)} parameter(3)",
        "ROOT %fusion = (f32[4,512]{1,0:T(4,128)}, f32[8,8]{1,0:T(8,128)}, f32[512]{0:T(512)S(1)}) "
        "fusion(%a, %b, %c, %d), kind=kLoop, calls=%fused",
        before=inner,
    )
    row = 4 * 512
    assert moved(text) == {"fusion": 2 * row + row}  # a row and the other operand, and the row that is updated


def test_flops_in_a_kernel_of_attention():
    """The compiler knows nothing of them: two products forward, as many more backward; half of each where causal."""
    attention = (
        "%splash_mha_fwd_residuals.3 = (bf16[2,4,512,128]{3,2,1,0}, f32[2,4,512,128]{3,2,1,0}) "
        'custom-call(%q, %q, %q), custom_call_target="tpu_custom_call"'
    )
    lines = ("%q = bf16[2,4,512,128]{3,2,1,0} parameter(0)", attention)
    product = 2 * 2 * 4 * 512 * 512 * 128
    found = total_work(entry(*lines), V5E, EIGHT)
    assert found["flops"] == 2 * product and found["uncounted"] == []
    assert total_work(entry(*lines), V5E, EIGHT, attended=0.5)["flops"] == product
    # One of ours says by its scope what it skips: a window of 100 reaches into the block before.
    ours = ', metadata={op_name="jit(step)/attention_causal_window_100/splash_mha_fwd_segmented/pallas_call"}'
    query, flops = (2, 4, 512, 128), total_work(entry(lines[0], attention + ours), V5E, EIGHT)["flops"]
    assert flops == call_cost("fwd", query, query, 2, True, 100)[0]
    other = total_work(entry(*lines).replace("splash_mha_fwd_residuals", "somebody_elses"), V5E, EIGHT)
    assert other["flops"] == 0 and other["uncounted"] == ["somebody_elses.3"]
    narrow = total_work(entry("%q = q7[2,128]{1,0} parameter(0)", "%r = q7[2,128]{1,0} copy(%q)"), V5E, EIGHT)
    assert narrow["uncounted"] == ["q", "r"]  # a type whose size nobody knows


LOOP = """
%body (state: (s32[], f32[1024])) -> (s32[], f32[1024]) {
  %state = (s32[]{:T(128)}, f32[1024]{0:T(1024)}) parameter(0)
  %count = s32[]{:T(128)} get-tuple-element(%state), index=0
  %values = f32[1024]{0:T(1024)} get-tuple-element(%state), index=1
  %step = s32[]{:T(128)} constant(2)
  %next = s32[]{:T(128)S(6)} add(%count, %step)
  %negate.1 = f32[1024]{0:T(1024)} negate(%values)
  ROOT %tuple.2 = (s32[]{:T(128)}, f32[1024]{0:T(1024)}) tuple(%next, %negate.1)
}
%condition (state.1: (s32[], f32[1024])) -> pred[] {
  %state.1 = (s32[]{:T(128)}, f32[1024]{0:T(1024)}) parameter(0)
  %limit = s32[]{:T(128)} constant(9)
  %count.1 = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  ROOT %less = pred[]{:T(512)} compare(%count.1, %limit), direction=LT
}
"""
LOOPS = (
    "%zero = s32[]{:T(128)} constant(0)",
    "%p = f32[1024]{0:T(1024)} parameter(0)",
    "%first = (s32[]{:T(128)}, f32[1024]{0:T(1024)}) tuple(%zero, %p)",
    "%while.1 = (s32[]{:T(128)}, f32[1024]{0:T(1024)}) while(%first), condition=%condition, body=%body",
    "ROOT %out = f32[1024]{0:T(1024)} get-tuple-element(%while.1), index=1",
)


def test_a_loop_counts_as_often_as_it_runs():
    found = total_work(entry(*LOOPS, before=LOOP), V5E, EIGHT)
    assert found["bytes"] == 5 * 2 * 4 * 1024  # 0, 2, 4, 6, 8
    assert found["uncounted"] == []
    said = [line + (', backend_config={"known_trip_count":{"n":"7"}}' if "while" in line else "") for line in LOOPS]
    assert total_work(entry(*said, before=LOOP), V5E, EIGHT)["bytes"] == 7 * 2 * 4 * 1024
    # One that ends by what it computes, begins with it, or counts another element counts once, and is named.
    computed = "%zero = s32[]{:T(128)} parameter(1)"
    ends, another = LOOP.replace("%limit)", "%count.1)"), LOOP.replace("%state), index=0", "%state), index=2")
    for lines, loop in ((LOOPS, ends), (LOOPS, another), ((computed, *LOOPS[1:]), LOOP)):
        other = total_work(entry(*lines, before=loop), V5E, EIGHT)
        assert other["bytes"] == 2 * 4 * 1024 and other["uncounted"] == ["while.1"]
    below = total_work(entry(LOOPS[0].replace("(0)", "(-4)"), *LOOPS[1:], before=LOOP), V5E, EIGHT)
    assert below["bytes"] == 7 * 2 * 4 * 1024


def test_collectives_of_the_sparse_cores_count():
    """As TPU7x's compiler prints them: in a computation that another core runs."""
    groups = "replica_groups=mesh['axis_0'=8] {'axis_0'}"
    called = [
        "%called (q: bf16[512], token: token[]) -> bf16[4096] {", "  %q = bf16[512]{0} parameter(0)",
        "  %token = token[] parameter(1)",
        f"  ROOT %all-gather.4 = bf16[4096]{{0}} all-gather(%q), channel_id=1, {groups}, dimensions={{0}}", "}",
    ]  # fmt: skip
    started = 'call-start(%p, %ready), async_execution_thread="sparsecore", to_apply=%called'
    lines = (
        "%p = bf16[512]{0} parameter(0)", "%ready = token[] after-all()",
        f"%gather.call-start = ((bf16[512]{{0}}, token[]), bf16[4096]{{0}}) {started}",
        "ROOT %gather.call-done = bf16[4096]{0} call-done(%gather.call-start)",
    )  # fmt: skip
    alone = entry(lines[0], f"ROOT %all-gather = bf16[4096]{{0}} all-gather(%p), {groups}, dimensions={{0}}")
    cost = total_work(entry(*lines, before="\n".join(called)), V5E, EIGHT)
    assert cost == total_work(alone, V5E, EIGHT) and cost["collective_bytes"] == {"all-gather": 7168}


FUSED = """
%all-reduce-scatter (q: f32[4096]) -> f32[512] {
  %q = f32[4096]{0} parameter(0)
  %sum = f32[4096]{0} all-reduce(%q), channel_id=1, replica_groups=[1,8]<=[8], to_apply=%add
  %zero = s32[] constant(0)
  ROOT %own = f32[512]{0} dynamic-slice(%sum, %zero), dynamic_slice_sizes={512}
}
"""


def test_a_sum_of_which_each_device_has_a_part_is_sent_once():
    scattered = "reduce-scatter(%p), replica_groups=[1,8]<=[8], dimensions={0}, to_apply=%add"
    for made in (scattered, "fusion(%p), kind=kCustom, calls=%all-reduce-scatter"):
        text = entry("%p = f32[4096]{0} parameter(0)", f"ROOT %own = f32[512]{{0}} {made}", before=FUSED)
        assert total_work(text, V5E, EIGHT)["collective_bytes"] == {"reduce-scatter": 4 * 4096 * 7 // 8}


def test_devices_of_a_group():
    for groups, first in (
        ("[2,4]<=[4,2]T(1,0)", [0, 2, 4, 6]), ("{{0,2},{1,3},{4,6},{5,7}}", [0, 2]), ("{}", list(range(8))),
        ("[4,2]<=[8]", [0, 1]), ("mesh['axis_0'=4,'axis_1'=2] {'axis_0'}", [0, 2, 4, 6]),
        ("mesh['axis_0'=4,'axis_1'=2] {'axis_0','axis_1'}", list(range(8))),
        ("mesh['axis_0'=8] {'axis_0':(2)4}", [0, 1, 2, 3]), ("mesh['axis_0'=8] {'axis_0':(1)4}", [0, 2, 4, 6]),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", [0, 2, 4, 6]),
    ):  # fmt: skip
        found = groups_of(f"channel_id=2, replica_groups={groups}, dimensions={{0}}", 8)
        assert found[0].tolist() == first, groups
        assert sorted(found.ravel().tolist()) == list(range(8)), groups


def gathered(coordinates: list, groups: str, dimensions: int) -> float:
    """Return the least seconds of gathering 8,000 bytes over links of 1,000 bytes per second."""
    text = entry(
        "%p = s8[1000]{0} parameter(0)",
        f"ROOT %all-gather = s8[8000]{{0}} all-gather(%p), replica_groups={groups}, dimensions={{0}}",
    )
    module = parse(text)
    links = Links(tuple(map(tuple, coordinates)), 1000.0, dimensions)
    return links.transfer(module.entry, module.entry.instructions["all-gather"]).seconds


def test_a_collective_has_all_links_of_a_chip():
    line = [[x, 0, 0] for x in range(8)]
    ring = [[x, 0, 0] for x in range(16)]
    cube = [[x, y, z] for x in range(4) for y in range(4) for z in range(4)]
    assert gathered(line, "[1,8]<=[8]", 2) == 7.0  # the chip at the end has one link
    assert gathered(ring, "[1,16]<=[16]", 2) == pytest.approx(7.5 / 2)
    # Along one dimension of three, too: no algorithm could do with less than all six.
    assert gathered(cube, "[16,4]<=[64]", 3) == pytest.approx(6.0 / 6)
    # The two cores of a chip of v3 share its links, and what one has, the other need not be sent.
    cores = [chip for chip in ([0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]) for _ in range(2)]
    assert gathered(cores, "[1,8]<=[8]", 2) == pytest.approx(6.0 / 2)
    # Each core in a group of its own: twice as much over the same links.
    assert gathered(cores, "[2,4]<=[4,2]T(1,0)", 2) == pytest.approx(2 * 6.0 / 2)
    assert gathered(cores, "[4,2]<=[8]", 2) == 0.0  # within chips


def test_a_program_of_several_steps_is_shared_between_them():
    found = {"flops": 4 * 0.005 * V5E.flops, "bytes": 4 * 0.001 * V5E.hbm_bandwidth, "link_seconds": 0.4}
    found |= {"collective_bytes": {"all-reduce": 8}, "uncounted": []}
    one, slow = step_estimate(found, V5E, 4, (1.0, 1.0, 1.0)), step_estimate(found, V5E, 4, (0.5, 0.5, 0.5))
    assert one["estimated_seconds"] == pytest.approx(0.105) and slow["estimated_seconds"] == pytest.approx(0.21)
    assert one["lower_bound_seconds"] == slow["lower_bound_seconds"] == 0.1 and one["bound_by"] == "interconnect"
    assert one["cost"]["collective_bytes"] == {"all-reduce": 2}
    moved = step_estimate(found, V5E, 4, (1.0, 0.005, 1.0))  # HBM traffic takes longer than both of the others
    assert moved["estimated_seconds"] == pytest.approx(0.2) and moved["bound_by"] == "memory"
    nothing = step_estimate(dict.fromkeys(found), V5E)
    assert nothing["estimated_seconds"] is None and nothing["lower_bound_seconds"] is None


CONVOLUTIONS = """
%product (p0: bf16[2,512,64], p1: bf16[64,256,1]) -> bf16[2,512,256] {
  %p0 = bf16[2,512,64]{2,1,0:T(8,128)(2,1)} parameter(0)
  %p1 = bf16[64,256,1]{1,0,2:T(8,128)(2,1)} parameter(1)
  ROOT %c0 = bf16[2,512,256]{2,1,0:T(8,128)(2,1)} convolution(%p0, %p1), window={size=1}, dim_labels=0bf_io0->0bf
}
%heads (p0: bf16[2,512,512,1], p1: bf16[512,2,64,1]) -> bf16[2,512,2,64] {
  %p0 = bf16[2,512,512,1]{3,2,1,0} parameter(0)
  %p1 = bf16[512,2,64,1]{3,2,1,0} parameter(1)
  ROOT %c1 = bf16[2,512,2,64]{3,2,1,0} convolution(%p0, %p1), window={size=1x2 pad=0_0x1_1 rhs_reversal=0x1}, \
dim_labels=0bf1_i1o0->0b1f
}
"""


PRODUCT = (
    "%x = bf16[2,512,64]{2,1,0} parameter(0)",
    "%y = bf16[64,256,1]{2,1,0} parameter(1)",
    "%z = bf16[2,512,512,1]{3,2,1,0} parameter(2)",
    "%w = bf16[512,2,64,1]{3,2,1,0} parameter(3)",
    "%one = bf16[2,512,256]{2,1,0} fusion(%x, %y), kind=kOutput, calls=%product",
    "ROOT %two = bf16[2,512,2,64]{3,2,1,0} fusion(%z, %w), kind=kOutput, calls=%heads",
)


def test_flops_of_products_are_those_of_the_matrices():
    """A TPU multiplies by convolutions; those of a batch are padded windows, of which most positions are empty."""
    module = parse(entry(*PRODUCT, before=CONVOLUTIONS))
    one, two = (flops(module, module.entry, module.entry.instructions[name]) for name in ("one", "two"))
    assert one == 2 * (2 * 512) * 64 * 256
    assert two == 2 * (2 * 512) * 512 * (2 * 64)  # [2 x 512, 512] by [512, 2 x 64]
    # Bytes multiply at twice the rate, and count as half.
    narrow = parse(entry(*PRODUCT, before=CONVOLUTIONS.replace("bf16", "s8")).replace("bf16", "s8"))
    assert flops(narrow, narrow.entry, narrow.entry.instructions["one"]) == one / 2


def test_the_factors_are_those_that_fit_the_measured_steps():
    """From what is kept of the compiled programs: bounds hold, and each estimate without its own row."""
    import plan_table

    rows = plan_table.rows()
    factors, errors, found = plan_table.compare()
    assert factors == estimate.FACTORS and errors == estimate.ERRORS and plan_table.numbers() == estimate.MEASURED
    assert [line["name"] for line in found] == list(plan_table.steps())
    for line in found:
        assert 0 < line["lower_bound"] <= line["measured"], line
        assert line["lower_bound"] <= line["estimated"], line
    models = {use: {rows[line["name"]]["title"].split(",")[0] for line in found if line["use"] == use} for use in USES}
    assert len(models["fitted"]) >= 6 and models["held-out"] and not models["fitted"] & models["held-out"]
    worst = {use: max(abs(line["off"]) for line in found if line["use"] == use) for use in USES}
    assert worst["held-out"] < 0.2  # the aim
    readme, guide = (" ".join((ROOT / page).read_text().split()) for page in ("README.md", "docs/guides/plans.md"))
    fitted, held_out = (f"{100 * worst[use]:.0f} %" for use in ("fitted", "held-out"))
    assert f"by at most {held_out} for held-out models and {fitted} for fitted ones" in readme
    assert f"For held-out models, the error is at most {held_out}." in guide
    outside = [line["off"] for line in found if line["use"] == "outside"]
    assert f"{-100 * min(outside):.0f} % too short or {100 * max(outside):.0f} % too long" in guide


def test_weights_that_a_fusion_only_renames_are_read_where_it_multiplies():
    """As v3 has them: the bitcast is a fusion of its own inside the fusion."""
    inner = """
%renamed (param_0.1: f32[3072,384]) -> f32[3072,384,1] {
  %param_0.1 = f32[3072,384]{1,0:T(8,128)} parameter(0)
  ROOT %bitcast.1 = f32[3072,384,1]{1,0,2:T(8,128)} bitcast(%param_0.1)
}
%multiplied (param_0.2: f32[256,3072], param_1.2: f32[3072,384]) -> f32[256,384] {
  %param_0.2 = f32[256,3072]{1,0:T(8,128)} parameter(0)
  %param_1.2 = f32[3072,384]{1,0:T(8,128)} parameter(1)
  %fusion.1 = f32[3072,384,1]{1,0,2:T(8,128)} fusion(%param_1.2), kind=kLoop, calls=%renamed
  ROOT %convolution.1 = f32[256,384]{1,0:T(8,128)} convolution(%param_0.2, %fusion.1), window={size=1}, \
dim_labels=bf_io0->bf
}
"""
    text = entry(
        "%a = f32[256,3072]{1,0:T(8,128)} parameter(0)",
        "%b = f32[3072,384]{1,0:T(8,128)} parameter(1)",
        "ROOT %fusion = f32[256,384]{1,0:T(8,128)} fusion(%a, %b), kind=kOutput, calls=%multiplied",
        before=inner,
    )
    assert moved(text) == {"fusion": 4 * (256 * 3072 + 3072 * 384 + 256 * 384)}


def test_of_branches_the_cheapest_counts():
    branch = """
%{name} (p.{name}: f32[1024]) -> f32[1024] {{
  %p.{name} = f32[1024]{{0:T(1024)}} parameter(0)
  ROOT %result.{name} = f32[1024]{{0:T(1024)}} {opcode}(%p.{name})
}}
"""
    text = entry(
        "%p = f32[1024]{0:T(1024)} parameter(0)",
        "%which = pred[] constant(true)",
        "ROOT %either = f32[1024]{0:T(1024)} conditional(%which, %p, %p), true_computation=%long, "
        "false_computation=%short",
        before=branch.format(name="long", opcode="negate") + branch.format(name="short", opcode="bitcast"),
    )
    assert total_work(text, V5E, EIGHT)["bytes"] == 0
