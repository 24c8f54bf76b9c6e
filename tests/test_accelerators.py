"""The table of accelerators: what a config may name, and what each place makes of it."""

import re
import shutil

import pytest
from conftest import ROOT
from tpulm.core.accelerators import (
    ACCELERATOR_PATTERN,
    ANY_DEVICES,
    JAX_TPUS,
    TPUS,
    check_devices,
    check_hosts,
    cloud_tpu_type,
    gres,
    is_tpu,
    parse_gpu,
    parse_tpu,
    shape_name,
    slice_chips,
    slice_hosts,
    slice_named,
    topology,
    tpu_name,
)
from tpulm.core.devices import tpu_versions
from tpulm.core.errors import UserError

# From Google's pages on each version: chips, hosts, devices of JAX, shape, accelerator type, Slurm's share of a host.
SLICES = {
    "v2-8": (4, 1, 8, "2x2", "v2-8", "tpu:v2:8"),
    "v3-8": (4, 1, 8, "2x2", "v3-8", "tpu:v3:8"),
    "v3-32": (16, 4, 32, "4x4", "v3-32", "tpu:v3:8"),
    "v4-8": (4, 1, 4, "2x2x1", "v4-8", "tpu:v4:8"),
    "v4-64": (32, 8, 32, "2x4x4", "v4-64", "tpu:v4:8"),
    "v5e-1": (1, 1, 1, "1x1", "v5litepod-1", "tpu:v5e:1"),
    "v5e-8": (8, 1, 8, "2x4", "v5litepod-8", "tpu:v5e:8"),
    "v5e-256": (256, 64, 256, "16x16", "v5litepod-256", "tpu:v5e:4"),
    "v5p-128": (64, 16, 64, "4x4x4", "v5p-128", "tpu:v5p:8"),
    "v6e-8": (8, 1, 8, "2x4", "v6e-8", "tpu:v6e:8"),
    "v6e-32": (32, 8, 32, "4x8", "v6e-32", "tpu:v6e:4"),
    "tpu7x-8": (4, 1, 8, "2x2x1", "tpu7x-8", "tpu:tpu7x:8"),
}


@pytest.mark.parametrize("name", SLICES)
def test_a_slice(name):
    chips, hosts, devices, shape, cloud_type, share = SLICES[name]
    found = topology(name)
    assert (found.chips, found.devices, slice_chips(name), slice_hosts(name)) == (chips, devices, chips, hosts)
    assert found.compiler_name == f"{name.split('-')[0]}:{shape}"
    assert shape_name(chips, TPUS[parse_tpu(name)[0]].dimensions) == shape
    assert (cloud_tpu_type(name), gres(name, hosts)) == (cloud_type, share)
    assert name in [slice_named(kind, devices) for kind in JAX_TPUS]
    # All devices together have what the chips have.
    tpu = TPUS[parse_tpu(name)[0]]
    assert found.flops * devices == tpu.flops * chips and found.hbm * devices == tpu.hbm * chips


def test_gpus_are_of_each_host():
    assert gres("h100:4", 2) == gres("h100:4") == "gpu:h100:4"
    assert gres(None, 2) is None
    assert parse_gpu("a100_80gb:16") == ("a100_80gb", 16) and not is_tpu("a100_80gb:16")


@pytest.mark.parametrize(
    "name", ["v7x-8", "tpu7-8", "v5e", "v5e-", "v5e-0", "v5e-08", "v5e-100000", "h100:4", "xv5e-8", ""]
)
def test_other_names_are_no_slices(name):
    assert not is_tpu(name)
    for function in (topology, slice_hosts, cloud_tpu_type, parse_tpu):
        with pytest.raises(UserError, match=f'^"{name}" .*v6e'):
            function(name)


@pytest.mark.parametrize("name", ["v5e-2", "v5e-12", "v5e-512", "v3-1", "v3-2", "v3-9", "v3-1024", "v4-2", "tpu7x-2"])
def test_slices_without_a_known_shape(name):
    with pytest.raises(UserError, match=f'^"{name}" .* shape.*{name[:2]}'):
        topology(name)


def test_the_schema_allows_what_the_table_knows():
    lines = (ROOT / "schemas/config.schema.yaml").read_text().split(" accelerator:\n")[1:]
    patterns = {re.search(r'pattern: "(.*)"', text)[1].replace("\\\\", "\\") for text in lines}
    assert patterns == {ACCELERATOR_PATTERN}
    assert all(re.search(ACCELERATOR_PATTERN, name) for name in [*SLICES, "h100:4"])


def test_a_run_takes_all_hosts_of_its_slice():
    check_hosts(2, "v5e-8", [1, 2])
    with pytest.raises(UserError, match=r"^resources\.hosts is 3, but v5e-8 has 1 or 2"):
        check_hosts(3, "v5e-8", [1, 2])
    with pytest.raises(UserError, match=r"^resources\.hosts is 3, but v5e-4 has 1 "):
        check_hosts(3, "v5e-4", [1])


@pytest.mark.parametrize(
    ("requested", "hosts", "number", "kind", "fits"),
    [
        (None, 1, 8, "cpu", True),
        ("v3-8", 1, 8, "TPU v3", True),
        ("v3-8", 1, 8, "TPU", True),  # one whose version nothing tells
        ("v3-8", 1, 8, "cpu", False),
        ("v5e-8", 1, 8, "TPU v2 or TPU v3", False),  # in TensorFlow
        ("v5e-16", 4, 16, "TPU v5 lite", True),
        ("v5e-16", 4, 4, "TPU v5 lite", False),
        ("tpu7x-8", 1, 8, "TPU7x", True),
        ("a100_80gb:8", 2, 16, "NVIDIA A100-SXM4-80GB", True),
        ("a100_80gb:1", 1, 1, "NVIDIA A100-SXM4-40GB", False),
        ("v100:1", 1, 1, "Tesla V100S-PCIE-32GB", True),
        ("h100_mega:8", 1, 8, "NVIDIA H100 80GB HBM3", True),
        ("h100:2", 1, 1, "NVIDIA H100 80GB HBM3", False),
        ("gpu:2", 1, 2, "NVIDIA RTX 6000 Ada Generation", True),
        ("gpu:1", 1, 1, "cpu", False),
    ],
)
def test_devices_are_those_of_the_request(monkeypatch, requested, hosts, number, kind, fits):
    resources = {"hosts": hosts, "run_key": "mlm.runs.tiny"} | ({"accelerator": requested} if requested else {})
    if fits:
        check_devices(resources, number, kind)
        return
    with pytest.raises(UserError) as raised:
        check_devices(resources, number, kind)
    message = str(raised.value)
    assert message.startswith(f"mlm.runs.tiny.resources.accelerator is {requested}, ")
    assert f"found {number} device" in message and f"({kind})" in message
    monkeypatch.setenv(ANY_DEVICES, "1")
    check_devices(resources, number, kind)


@pytest.mark.parametrize(
    ("device", "requested", "name"),
    [
        ("0x0027", "v2-8", "TPU v2"),
        ("0x0027", "v5e-8", "TPU v2 or TPU v3"),
        ("0x0063", "", "TPU v5 lite"),
        ("0x0056", "v5p-8", "TPU of another version"),
    ],
)
def test_tensorflow_names_a_tpu_by_its_pci_device(tmp_path, device, requested, name):
    for place, vendor, found in (("0000:00:04.0", "0x1ae0", "0x0042"), ("0000:00:05.0", "0x1ae0", device)):
        (tmp_path / place).mkdir()
        (tmp_path / place / "vendor").write_text(f"{vendor}\n")
        (tmp_path / place / "device").write_text(f"{found}\n")
    assert tpu_name(tpu_versions(tmp_path), requested) == name
    shutil.rmtree(tmp_path / "0000:00:05.0")
    assert tpu_versions(tmp_path) is None and tpu_name(None, requested) == "TPU"  # a network adapter of Google's
