"""Shard variables over a device mesh by the layout map of a model family, and check that it was followed."""

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping

import jax
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from keras.distribution import DeviceMesh, LayoutMap, ModelParallel, TensorLayout

from tpulm.compat.keras import layout_of
from tpulm.core.devices import IN_USE
from tpulm.core.errors import UserError
from tpulm.models.variables import is_random_state

AXES = ["batch", "model"]
BLOCK_OUTPUT = re.compile(r"(decoder_block_|transformer_layer_|encoder\.layer\.|model\.layers\.)\d+/output$")
# Llama's blocks and those that are built like them, with kernels [hidden, heads, width] of the projections. keras-hub's
# own maps of them shard the hidden states over the axis model, as if the kernels were Gemma's, [heads, hidden, width].
LLAMA = {
    "token_embedding/embeddings": ("model", "batch"),
    "token_embedding/reverse_embeddings": ("batch", "model"),
    "transformer_layer.*self_attention/(query|key|value)/kernel": ("batch", "model", None),
    "transformer_layer.*self_attention/(query|key|value)/bias": ("model", None),
    "transformer_layer.*self_attention/attention_output/kernel": ("model", None, "batch"),
    "transformer_layer.*feedforward_(gate|intermediate)_dense/kernel": ("batch", "model"),
    "transformer_layer.*feedforward_output_dense/kernel": ("model", "batch"),
}
GEMMA3 = {
    "token_embedding/embeddings": ("model", "batch"),
    "decoder_block.*attention/(query|key|value)/kernel": ("model", "batch", None),
    "decoder_block.*attention/attention_output/kernel": ("model", None, "batch"),
    "decoder_block.*ffw_gating(_2)?/kernel": ("batch", "model"),
    "decoder_block.*ffw_linear/kernel": ("model", "batch"),
}
# Layout maps that replace those of keras-hub, or that it lacks: attention by heads, feed-forward by its inner dimension
# (Shoeybi et al. 2019), tables of embeddings by the vocabulary.
LAYOUTS = {
    "RobertaBackbone": {
        "roberta.embeddings/word_embeddings/embeddings": ("model", None),
        "roberta.encoder.layer.*attention.self/(query|key|value)/kernel": (None, "model", None),
        "roberta.encoder.layer.*attention.self/(query|key|value)/bias": ("model", None),
        "roberta.encoder.layer.*attention.output.dense/kernel": ("model", None, None),
        "roberta.encoder.layer.*/intermediate.dense/kernel": (None, "model"),
        "roberta.encoder.layer.*/intermediate.dense/bias": ("model",),
        "roberta.encoder.layer.*/output.dense/kernel": ("model", None),
        "lm_head/output_bias": ("model",),
    },
    "ModernBertBackbone": {
        "model.embeddings.tok_embeddings/embeddings": ("model", None),
        "model.layers.*attn.Wqkv.(query|key|value)/kernel": (None, "model", None),
        "model.layers.*attn.Wo/kernel": ("model", None, None),
        "model.layers.*mlp.Wi.(activated|gate)/kernel": (None, "model"),
        "model.layers.*mlp.Wo/kernel": ("model", None),
        "head/output_bias": ("model",),
    },
    "Gemma3Backbone": GEMMA3,
    "Gemma4Backbone": GEMMA3
    | {
        "per_layer_token_embedding/embeddings": ("model", "batch"),
        "per_layer_model_projection/kernel": ("batch", "model"),
        "decoder_block.*per_layer_input_gate/kernel": ("batch", "model"),
        "decoder_block.*per_layer_up_proj/kernel": ("model", "batch"),
    },
    "LlamaBackbone": LLAMA,
    "Llama3Backbone": LLAMA,
    "MistralBackbone": LLAMA,
    "QwenBackbone": LLAMA,
    "Qwen3Backbone": LLAMA,
    "Qwen3_5Backbone": LLAMA
    | {
        "transformer_layer.*linear_attn/in_proj_(qkv|z)/kernel": ("batch", "model"),
        "transformer_layer.*linear_attn/out_proj/kernel": ("model", "batch"),
    },
}


def mesh_shape(mesh: list[int], devices: int, kind: str, where: str) -> tuple[int, int]:
    """Return the sizes of the axes batch and model. Raises UserError, naming `where`, for a mesh that does not fit."""
    known = int(np.prod([size for size in mesh if size != -1]))
    fits = devices % known == 0 if -1 in mesh else known <= devices
    if not fits:
        raise UserError(
            f"{where} is {mesh}, which does not fit the {devices} {kind} device{'s' * (devices != 1)} here; allowed: "
            f"two sizes whose product is at most {devices}, or -1 for one of them, the remaining devices."
        )
    batch, model = (devices // known if size == -1 else size for size in mesh)
    return batch, model


def on_one_host(recipe: Mapping, resources: Mapping) -> Mapping:
    """Return a run's recipe for a job on one host; if the run has several, the mesh is all devices of the host."""
    return {**recipe, "mesh": [1, -1]} if resources.get("run_hosts", 1) > 1 else recipe


def devices_of(distribution: ModelParallel) -> dict[str, int]:
    """Return the number of devices of a mesh by kind, on all hosts."""
    return dict(Counter(device.device_kind for device in distribution.device_mesh.backend_mesh.devices.ravel()))


def replication_notes(distribution: "Sharded") -> list[str]:
    """Return a sentence on the variables that cannot be sharded by the layout map; an empty list without any."""
    if not distribution.notes:
        return []
    path, note = next(iter(distribution.notes.items()))
    return [f"{len(distribution.notes)} variable(s) are not sharded as the layout map says; the first, {path}: {note}"]


class Sharded(ModelParallel):
    """A layout map that is followed wherever a dimension can be divided; `notes` says by path where it cannot.

    A run's own layouts take precedence. LoRA's A and B are sharded as the kernel that their product is added to.
    """

    def __init__(self, layout_map: LayoutMap, overrides: Mapping | None = None, where: str = ""):
        """Shard variables by `layout_map`, and batches over the axis `batch`.

        overrides  layouts of the run `where`: mesh axes or None for each dimension, by regular expressions that match
                   the paths of variables in full
        """
        super().__init__(layout_map=layout_map, batch_dim_name="batch", auto_shard_dataset=False)
        self.layout_map, self.notes = layout_map, dict[str, str]()
        self.overrides, self.where = {key: tuple(axes) for key, axes in (overrides or {}).items()}, where
        self.sizes = dict(zip(self.device_mesh.axis_names, self.device_mesh.shape, strict=True))
        self.constrains = False

    def layout_of(self, path: str) -> tuple[str | None, tuple | None]:
        """Return the rule that a variable's path follows, and the mesh axes that it names; (None, None) without one.

        Raises UserError if several layouts of the run match the path.
        """
        matches = [key for key in self.overrides if re.fullmatch(key, path)]
        if len(matches) > 1:
            both = " and ".join(f'"{key}"' for key in matches[:2])
            raise UserError(f"{self.where}.layout: {both} both match the variable {path}; allowed: one match.")
        if matches:
            return matches[0], self.overrides[matches[0]]
        layer, _, name = path.rpartition("/")
        if name in ("lora_kernel_a", "lora_kernel_b"):
            rule, axes = self.layout_of(f"{layer}/kernel")
            return rule, axes and ((*axes[:-1], None) if name == "lora_kernel_a" else (None, axes[-1]))
        layout = self.layout_map[path]
        rule = next((key for key in self.layout_map if self.layout_map[key] is layout), None) if layout else None
        return rule, layout.axes if layout else None

    def expected(self, path: str, shape: tuple) -> tuple:
        """Return the mesh axis of each dimension of a variable, None for a dimension that is not sharded.

        Raises UserError for a layout of the run that has more or fewer axes than the variable.
        """
        rule, layout = self.layout_of(path)
        if layout is None:
            return (None,) * len(shape)
        if len(layout) != len(shape):
            raise UserError(
                f'{self.where}.layout: "{rule}" has {len(layout)} axes, but the variable {path} has the shape '
                f"{tuple(shape)}; allowed: one axis, or null, for each dimension."
            )
        axes = []
        for index, (axis, size) in enumerate(zip(layout, shape, strict=True)):
            if axis is not None and size % self.sizes[axis]:
                self.notes[path] = (
                    f"dimension {index} of size {size} cannot be divided over {self.sizes[axis]} devices "
                    f'of the axis "{axis}"; it is replicated'
                )
                axis = None
            axes.append(axis)
        return tuple(axes)

    def get_variable_layout(self, variable: keras.Variable) -> TensorLayout:
        """Return the layout of a variable; called by Keras when it makes one."""
        return layout_of(variable) or TensorLayout(self.expected(variable.path, variable.shape), self.device_mesh)

    @contextlib.contextmanager
    def records_apart(self) -> Iterator[None]:
        """Shard the outputs of the model's blocks by records within the context, as their inputs are.

        For traces of batches that the axis `batch` divides. If weights are sharded over it, too, the compiler may
        otherwise gather the records instead of the weights, and compute each record on every device.
        """
        layouts = [layout.axes for layout in self.layout_map.values()] + list(self.overrides.values())
        self.constrains = self.sizes["batch"] > 1 and any("batch" in axes for axes in layouts)
        try:
            yield
        finally:
            self.constrains = False

    def get_tensor_layout(self, path: str) -> TensorLayout | None:
        """Return the layout of a layer's output, None for any layout; Keras calls it with the path and /output."""
        constrained = self.constrains and BLOCK_OUTPUT.search(path)
        return TensorLayout(("batch",), self.device_mesh) if constrained else None


def shardings(distribution: Sharded, variables: list) -> list[NamedSharding]:
    """Return the sharding of each Keras variable by the layout map; variables need no values."""
    mesh = distribution.device_mesh.backend_mesh
    return [NamedSharding(mesh, PartitionSpec(*distribution.get_variable_layout(v).axes)) for v in variables]


def replicated_sharding(distribution: Sharded) -> NamedSharding:
    """Return the sharding of an array that every device holds whole, such as a loss."""
    return NamedSharding(distribution.device_mesh.backend_mesh, PartitionSpec())


def batch_sharding(distribution: Sharded, steps: int = 1) -> NamedSharding:
    """Return the sharding of a batch's arrays: records over the axis batch, after a dimension of several `steps`."""
    axes = (distribution.batch_dim_name,) if steps == 1 else (None, distribution.batch_dim_name)
    return NamedSharding(distribution.device_mesh.backend_mesh, PartitionSpec(*axes))


def layout_map_of(backbone: type, mesh: DeviceMesh) -> LayoutMap | None:
    """Return the layout map of a backbone class: that of LAYOUTS, else of keras-hub, else None."""
    name, keras_hub_map = backbone.__name__, getattr(backbone, "get_layout_map", None)
    if name not in LAYOUTS:
        return keras_hub_map(mesh) if keras_hub_map else None
    layout_map = LayoutMap(mesh)
    for path, axes in LAYOUTS[name].items():
        layout_map[path] = axes
    return layout_map


def set_up(
    backbone: type, mesh: list[int], where: str, devices: list | None = None, overrides: Mapping | None = None
) -> Sharded:
    """Make devices a mesh and return its sharding, which every variable made from now on follows.

    backbone   class of the model family, which has the layout map
    where      config key of the run
    devices    all of JAX's by default, or those of a topology description
    overrides  layouts of the run, see `Sharded`

    Raises UserError for a mesh that does not fit the devices or the family.
    """
    if devices is None:
        devices = jax.devices()
        IN_USE.update(Counter(device.device_kind for device in jax.local_devices()))
    shape = mesh_shape(mesh, len(devices), devices[0].platform, f"{where}.mesh")
    if jax.process_count() > 1 and shape[0] * shape[1] < len(devices):
        raise UserError(
            f"{where}.mesh is {mesh}, which takes {shape[0] * shape[1]} of the {len(devices)} devices of all hosts; "
            "allowed with several hosts: a mesh of all devices."
        )
    device_mesh = DeviceMesh(shape, AXES, devices=np.array(devices[: shape[0] * shape[1]]))
    layout_map = layout_map_of(backbone, device_mesh)
    if layout_map is None:
        if shape[1] > 1 and not overrides:
            raise UserError(
                f"{where}.mesh is {mesh}, but there is no layout map for {backbone.__name__}; allowed: [-1, 1], or a "
                f"map in {where}.layout."
            )
        layout_map = LayoutMap(device_mesh)
    distribution = Sharded(layout_map, overrides, where)
    keras.distribution.set_distribution(distribution)
    return distribution


def partitioning(model: keras.Model, distribution: Sharded) -> list[dict]:
    """Return a row on the sharding of each variable of a model. Raises UserError, see `check_shardings`."""
    trainable = {id(variable) for variable in model.trainable_variables}
    check_shardings(model.variables, distribution)
    rows = []
    for variable in model.variables:
        if is_random_state(variable):
            continue
        shard = variable.value.sharding.shard_shape(variable.shape)
        rows.append(
            {
                "path": variable.path,
                "shape": list(variable.shape),
                "dtype": str(variable.dtype),
                "trainable": id(variable) in trainable,
                "rule": distribution.layout_of(variable.path)[0],
                "spec": list(distribution.expected(variable.path, variable.shape)),
                "bytes_per_device": int(np.prod(shard)) * variable.value.dtype.itemsize,
                "note": distribution.notes.get(variable.path),
            }
        )
    return rows


def check_overrides(variables: list, distribution: Sharded) -> None:
    """Raise UserError for the first layout of the run that matches no variable of its model."""
    for key in distribution.overrides:
        if not any(re.fullmatch(key, variable.path) for variable in variables):
            raise UserError(
                f'{distribution.where}.layout: "{key}" matches no variable of the model, whose variables have paths '
                f"such as {max((variable.path for variable in variables), key=len)}."
            )


def check_shardings(variables: list, distribution: Sharded) -> None:
    """Raise UserError for the first variable that is not sharded as the layout map says."""
    check_overrides(variables, distribution)
    for variable in variables:
        if is_random_state(variable):
            continue
        axes = distribution.expected(variable.path, variable.shape)
        parts = [distribution.sizes[axis] if axis else 1 for axis in axes]
        expected = tuple(size // n for size, n in zip(variable.shape, parts, strict=True))
        actual = tuple(variable.value.sharding.shard_shape(variable.shape))
        if actual != expected:
            raise UserError(
                f"the variable {variable.path} of shape {tuple(variable.shape)} has shards of {actual}; "
                f"allowed: {expected}, by the layout map ({axes}) and the mesh ({distribution.sizes})."
            )
