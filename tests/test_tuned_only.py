"""Gemma 4 and Qwen 3.5, which are tuned here and not trained from scratch: from presets and folders, for text alone."""

import json
from functools import cache

import numpy as np
import pytest
import test_causal
from conftest import open_vocabulary
from safetensors.numpy import load_file, save_file
from test_causal import RECIPE, prose, train, trainer_of
from test_lora import LORA, opened, tuned_and_merged
from test_transformers import OPEN, check_greedy, check_opened, check_same, export, job_of, logits
from tpulm.config.model_sizes import backbone_arguments, causal_size
from tpulm.core.errors import UserError
from tpulm.core.files import write_json
from tpulm.core.foreign_folders import check_preset
from tpulm.specs.byte_level import Vocabulary
from tpulm.specs.causal_families import refuse_bypassed
from tpulm.specs.training_step import TrainingStep
from tpulm.tokenization.sentencepiece_bpe import train_vocabulary
from tpulm.tokenization.training import train_byte_level

jax_backend, packed = test_causal.jax_backend, test_causal.packed
vocabulary = test_causal.vocabulary
SIZES = {"num_query_heads": 4, "num_key_value_heads": 2, "hidden_dim": 32, "intermediate_dim": 64, "head_dim": 8}
# Blocks with and without keys of their own; keys that are the values; wider heads; a window shorter than the text.
GEMMA4 = SIZES | {
    "num_layers": 3, "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "sliding_window_pattern": 2, "sliding_window_size": 5, "num_kv_shared_layers": 1, "global_head_dim": 16,
    "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 330,
    "use_double_wide_mlp": True, "global_rope_partial_rotary_factor": 0.25, "global_rope_wavelength": 1e6,
    "local_rope_wavelength": 1e4, "final_logit_soft_cap": 30.0, "image_size": 16,
}  # fmt: skip
QWEN = SIZES | {
    "num_layers": 2, "layer_types": ["linear_attention", "full_attention"], "tie_word_embeddings": True,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
VISION = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 16, "head_dim": 8}
PICTURES = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "patch_size": 4}
PICTURES |= {"out_hidden_size": 32, "num_position_embeddings": 16}
TOKENS = ("<|im_start|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<think>")
VOCABULARY = Vocabulary("Qwen3Tokenizer", pad="<|endoftext|>", eos="<|im_end|>", others=TOKENS)
NAMES = ("gemma4", "qwen3_5")


def published(name, folder):
    """Write a preset as it is published, with an encoder of images, below a folder; return its path."""
    import keras
    import keras_hub.models as hub
    from tpulm.models.causal import draw_causal_weights
    from tpulm.models.preset_folders import save_preset
    from tpulm.tokenization.byte_level import vocabulary_and_merges

    keras.distribution.set_distribution(None)
    if name == "gemma4":
        encoder = hub.Gemma4VisionEncoder(
            image_size=16, patch_size=4, pool_size=2, num_key_value_heads=2, output_dim=32, **VISION
        )
        backbone = hub.Gemma4Backbone(vocabulary_size=330, vision_encoder=encoder, **GEMMA4)
        tokenizer = hub.GemmaTokenizer(proto=train_vocabulary(prose(200), 330, ""))
        preprocessor = hub.GemmaCausalLMPreprocessor(tokenizer, sequence_length=16)
    else:
        train_byte_level([prose(200)], VOCABULARY, 330, "").save(str(folder / "vocabulary.json"))
        module = hub.Qwen3_5Backbone.__module__.replace("backbone", "vision_encoder")
        encoder = {"module": module, "class_name": "Qwen3_5VisionEncoder", "registered_name": None, "config": PICTURES}
        encoder = keras.saving.deserialize_keras_object(encoder)
        backbone = hub.Qwen3_5Backbone(vocabulary_size=330, vision_encoder=encoder, **QWEN)
        ids, merges = vocabulary_and_merges(folder / "vocabulary.json")
        tokenizer = hub.Qwen3_5Tokenizer(ids, merges, unsplittable_tokens=VOCABULARY.special)
        preprocessor = hub.Qwen3CausalLMPreprocessor(tokenizer, sequence_length=16)
    draw_causal_weights(backbone, 0)
    draw = np.random.default_rng(1)
    for variable in backbone.weights:
        if variable.path.endswith(("scale", "layer_scalar", "conv1d_kernel", "dt_bias", "A_log")):
            variable.assign(np.asarray(variable.value) + 0.2 * draw.standard_normal(variable.shape))
    task = hub.Gemma4CausalLM if name == "gemma4" else hub.Qwen3_5CausalLM
    save_preset(task(backbone=backbone, preprocessor=preprocessor), folder / "published")
    for file in ("preprocessor.json", "task.json"):  # as keras-hub's own have it
        text = (folder / "published" / file).read_text()
        for ours, theirs in (("GemmaCausal", "Gemma4Causal"), ("Qwen3Causal", "Qwen3_5Causal")):
            text = text.replace(f"{ours}LMPreprocessor", f"{theirs}LMPreprocessor")
        (folder / "published" / file).write_text(text)
    return folder / "published"


@pytest.fixture(scope="module")
def made(jax_backend, tmp_path_factory):
    """Return the folder, by name, of the part that reads text, as rule fetch_base saves it, and of that exported."""
    from tpulm.models.preset_folders import load_text, reads_more, save_preset

    @cache
    def folder_of(name):
        folder = tmp_path_factory.mktemp(name)
        whole = published(name, folder)
        check_preset(whole, "base.small.preset")
        assert reads_more(whole)
        save_preset(load_text(whole), folder / "preset")
        assert not reads_more(folder / "preset")
        export(folder / "preset", folder / "exported")
        return folder

    return folder_of


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_of_transformers_is_the_same_model(made, tmp_path, name):
    """As it is exported, and as it is published, with images; the sizes are those that are expected."""
    from tpulm.models.from_transformers import load_transformers
    from tpulm.models.preset_folders import load_preset

    folder = made(name)
    model = load_preset(folder / "preset")
    config = json.loads((folder / "exported/config.json").read_text())
    for described in (json.loads((folder / "preset/config.json").read_text()), config):
        assert causal_size(*backbone_arguments(described)).parameters == model.count_params()
    whole = {"model_type": config["model_type"].removesuffix("_text"), "text_config": config}
    for file in (folder / "exported").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    files = sorted(tmp_path.glob("*.safetensors"))
    tensors = {key: array for file in files for key, array in load_file(file).items()}
    for file in [*files, tmp_path / "model.safetensors.index.json"]:
        file.unlink()
    others = {"model.visual.x": np.zeros(1), "model.layers.2.self_attn.k_proj.weight": np.zeros(1)}
    renamed = {key.replace("model.", "model.language_model."): array for key, array in (tensors | others).items()}
    if name == "qwen3_5":
        del renamed["model.language_model.layers.2.self_attn.k_proj.weight"]
    renamed["model.visual.x"] = renamed.pop("model.language_model.visual.x")
    save_file(renamed, tmp_path / "model.safetensors")
    write_json(tmp_path / "config.json", whole | {"vision_config": {}, "tie_word_embeddings": True})
    for source in (folder / "exported", tmp_path):
        check_same(load_transformers(source, "base.small.preset"), model)


TARGETS = {"gemma4": ["query", "key", "value", "output"], "qwen3_5": ["query", "value", "output", "ffn"]}
QUICK = [pytest.param(name, marks=() if name == "gemma4" else pytest.mark.long) for name in NAMES]  # to compile


@pytest.mark.parametrize("name", QUICK)
def test_greedy_generation_follows_the_logits(made, name):
    check_greedy(made(name) / "preset", 24)


@pytest.mark.parametrize("name", QUICK)
def test_adapters_train_on_eight_devices_as_planned(made, packed, name):
    import jax
    from tpulm.models import sharding
    from tpulm.planning.abstract_run import AbstractRun

    changes = LORA | {"targets": TARGETS[name], "remat": True}
    trainer = trainer_of("finetune", base={"preset": made(name) / "preset"}, **changes)
    losses = train(trainer, packed, 0, 3)
    alone = trainer_of("finetune", base={"preset": made(name) / "preset"}, **changes | {"mesh": (1, 1)})
    np.testing.assert_allclose(losses, train(alone, packed, 0, 3), rtol=1e-3)
    assert all(np.abs(array).max() > 0 for array in trainer.weights().values())  # also B, which begins as 0
    rows = sharding.partitioning(trainer.run.model, trainer.run.distribution)
    large = [row for row in rows if row["path"].endswith(("/kernel", "embeddings")) and np.prod(row["shape"]) > 1000]
    assert [row["path"] for row in large if set(row["spec"]) - {None} != {"batch", "model"} and not row["note"]] == []
    step = TrainingStep.of("finetune", "the.run", RECIPE | changes | {"base": {"preset": made(name) / "published"}})
    plan = AbstractRun(step, jax.devices())
    assert [v.path for v in plan.model.variables] == [row["path"] for row in rows]
    plan.lowered()


@pytest.mark.parametrize("name", QUICK)
def test_a_merged_model_gives_the_tuned_logits(made, tmp_path, name):
    """The base is bfloat16; tests/test_lora.py has int8."""
    base = made(name) / "preset"
    ids = open_vocabulary(base).encode([" ".join(prose(3))])[0][:24]
    model, merged = tuned_and_merged(base, tmp_path, targets=TARGETS[name], base_precision="bfloat16")
    np.testing.assert_allclose(logits(merged, ids), logits(model, ids), atol=1e-4)


def test_settings_that_gemma_4_computes_otherwise_are_refused(made):
    with pytest.raises(UserError, match="^the.run.targets names ffn; allowed for Gemma 4: "):
        opened(made("gemma4") / "preset", targets=["ffn"])
    with pytest.raises(UserError, match="^the.run.base_precision is int8; allowed for Gemma 4: "):
        refuse_bypassed("Gemma4Backbone", "the.run", ("query",), "int8")


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_transformers_and_peft_give_the_logits_of_keras(made, openers, name):
    job, *keras = job_of(made(name) / "preset", made(name) / "exported", TARGETS[name])
    found = openers.result("transformers 5", OPEN, [job])[job["folder"]]
    check_opened(found, job, *keras)
    assert found["class"] == {"gemma4": "Gemma4ForCausalLM", "qwen3_5": "Qwen3_5ForCausalLM"}[name]
