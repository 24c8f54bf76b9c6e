"""Run a trained model of results/ on prompts, in a terminal or from options. Can be used while the workflow runs.

    python tools/try.py tiny
    python tools/try.py finetune/python --prompt "def "
    python tools/try.py tiny --prompt "Return the [MASK] of the list."
    python tools/try.py experiments/sums/results/finetune/lora < question.txt

A masked model fills in the [MASK] of a prompt, with the probability of each of five answers; a causal model (base,
finetuned, or an adapter on its base) continues it, sampled as `generation` of its config says, or with the defaults
where that config is not given. What is piped in is one prompt, of any number of lines. At the terminal, a line that
ends with a backslash goes on in the next one. The model runs on the CPU, beside a training that has the accelerator,
unless JAX_PLATFORMS and CUDA_VISIBLE_DEVICES say otherwise.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

try:
    from tpulm.config.exported_models import sampling_of
    from tpulm.config.reading import complete, read_config
    from tpulm.core.errors import UserError
    from tpulm.core.files import read_json
    from tpulm.specs.artifacts import experiment_folder, in_experiment
    from tpulm.specs.masked_sizes import opens
except ModuleNotFoundError as error:
    sys.exit(f"error: this Python has no {error.name}; activate the environment: `. .venv/bin/activate`.")

# A file that a finished model of each stage has, below the folder of the stage and of the run.
WHOLE = {
    "mlm": ["model/model.safetensors"],
    "base": ["preset/config.json"],
    "finetune": ["model/config.json", "adapter.lora.h5"],
}
CONFIG = Path("config.yaml")
Ask = Callable[[str], list[str]]


def models(results: Path) -> list[str]:
    """Return every finished model of a folder of results, as STAGE/RUN."""
    found = [
        f"{stage}/{folder.name}"
        for stage, files in WHOLE.items()
        for folder in (results / stage).glob("*")
        if any((folder / file).is_file() for file in files)
    ]
    return sorted(found)


def chosen(run: str, results: Path) -> tuple[str, str]:
    """Return stage and name of the model that the user means by RUN, STAGE/RUN or the key of the config."""
    there = models(results)
    name = run.replace(".runs.", "/").replace(".", "/").strip("/")
    found = [model for model in there if model == name or model.partition("/")[2] == name]
    if len(found) == 1:
        stage, _, name = found[0].partition("/")
        return stage, name
    said = "which is ambiguous" if found else "which is not a trained model"
    raise UserError(f"the run is {run}, {said} in {results}; allowed: {', '.join(found or there) or 'none'}.")


def masked(folder: Path) -> Ask:
    """Return what answers the prompts of a masked model, of a Hugging Face model folder."""
    fill, mask = (on_jax if opens(read_json(folder / "config.json")) else on_tensorflow)(folder)

    def ask(prompt: str) -> list[str]:
        if prompt.count("[MASK]") != 1:
            raise UserError("a masked model needs a prompt with one [MASK].")
        found = fill(prompt.replace("[MASK]", mask))
        return ["\n".join(f"{answer['score']:6.1%}  {visible(answer['token_str'])}" for answer in found)]

    return ask


def visible(token: str) -> str:
    """Return a token, in quotes if its characters cannot be seen."""
    return token if token.isprintable() and token.strip() else repr(token)


def on_jax(folder: Path) -> tuple[Callable, str]:
    """Return what predicts the masked token of a prompt, and how a prompt has it."""
    from tpulm.training import runtime

    runtime.start(os.cpu_count() or 1)
    from tpulm.models.loading import FillMask

    fill = FillMask(folder)
    return fill, fill.mask


def on_tensorflow(folder: Path) -> tuple[Callable, str]:
    """Return the same of a model of any architecture that transformers has in TensorFlow."""
    from tpulm.training import tensorflow_runtime as runtime
    from tpulm.training.tensorflow_model import load_model
    from transformers import AutoTokenizer, pipeline

    runtime.start(os.cpu_count() or 1, 1, tpu=False)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    fill = pipeline("fill-mask", model=load_model(folder), tokenizer=tokenizer, framework="tf", dtype=None)
    return fill, tokenizer.mask_token


def causal(folder: Path, adapter: Path | None, sampling: dict) -> Ask:
    """Return what continues the prompts of a causal model, of a preset folder, with the LoRA weights of a folder."""
    from tpulm.training import runtime

    runtime.start(os.cpu_count() or 1)
    from tpulm.models.causal import load_preset
    from tpulm.models.sampling import Generator

    model = load_preset(folder)
    if adapter:
        model.backbone.enable_lora(**read_json(adapter / "adapter.lora.json"))
        model.backbone.load_lora_weights(str(adapter / "adapter.lora.h5"))
    generate = Generator(model, sampling, 1)
    return lambda prompt: [f"{prompt}{text}" for text in generate([prompt])[0]]


def results_of(config: Mapping) -> Path:
    """Return the results of a config; without one, those of this folder."""
    return Path(in_experiment("<results>", experiment_folder(config)))


def place_of(asked: argparse.Namespace) -> tuple[Path, str, Mapping]:
    """Return the results that have the run, the run, which the user may give as a folder, and its config.

    The config is empty where it is not known. Raises UserError.
    """
    folder = Path(os.path.abspath(asked.run))
    if folder.is_dir() and folder.parent.name in WHOLE:
        config = read_config(asked.configfile, {}) if asked.configfile else {}
        if not config and CONFIG.is_file():
            with contextlib.suppress(UserError):
                here = read_config([CONFIG], {})
                config = here if results_of(here).resolve() == folder.parents[1].resolve() else {}
        return Path(os.path.relpath(folder.parents[1])), f"{folder.parent.name}/{folder.name}", config
    config = read_config(asked.configfile or [CONFIG], {}) if asked.configfile or CONFIG.is_file() else {}
    results = asked.results or results_of(config)
    if not models(results) and asked.results is None and asked.configfile is None:
        raise UserError(f"there is no trained model in {results}; those of another config need --configfile.")
    return results, asked.run, config


def base_of(name: str, results: Path, config: Mapping) -> str:
    """Return the base model of an adapter: by its config, or else by what `snakemake` has kept of the run."""
    if name in config.get("finetune", {}).get("runs", {}):
        return str(config["finetune"]["runs"][name]["base"])
    kept = results / "history" / "finetune" / f"{name}.json"
    if not kept.is_file():
        raise UserError(f"the base model of {results}/finetune/{name} is not known; name its config with --configfile.")
    return str(read_json(kept)[-1]["recipe"]["base"])


def opened(asked: argparse.Namespace) -> Ask:
    """Return what answers the prompts of the model that was asked for. Raises UserError."""
    results, run, config = place_of(asked)
    stage, name = chosen(run, results)
    folder = results / stage / name
    if stage == "mlm":
        return masked(folder / "model")
    sampling = sampling_of(config or complete({"corpus": {"source": "python-docs"}}, "config.yaml"))
    given = {"max_length": asked.max_length, "samples": asked.samples, "seed": asked.seed}
    sampling |= {key: value for key, value in given.items() if value is not None and key in sampling}
    if stage == "base" or (folder / "model").is_dir():
        return causal(folder / ("preset" if stage == "base" else "model"), None, sampling)
    return causal(results / "base" / base_of(name, results, config) / "preset", folder, sampling)


def main() -> None:
    """Answer the prompt of the command line, or those that are typed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run: its name, STAGE/RUN if the name is ambiguous, or its folder")
    parser.add_argument("--prompt", action="append", help="run the model on this prompt and exit; repeatable")
    parser.add_argument("--configfile", type=Path, nargs="+", help="as for snakemake")
    parser.add_argument("--results", type=Path, help="where the models are; default: the results of the config")
    for key in ("max_length", "samples", "seed"):
        parser.add_argument(f"--{key.replace('_', '-')}", type=int, help=f"instead of generation.{key} of the config")
    asked = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    try:
        ask = opened(asked)
    except UserError as error:
        sys.exit(f"error: {error}")
    refused = False
    for prompt in asked.prompt or typed():
        try:
            print("\n---\n".join(ask(prompt)), flush=True)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            refused = True
    sys.exit(refused and (bool(asked.prompt) or not sys.stdin.isatty()))  # what is typed can be typed again


def typed() -> Iterator[str]:
    """Yield what the user types, up to an empty line or the end of the input; all at once what is piped in."""
    if not sys.stdin.isatty():
        if text := sys.stdin.read().removesuffix("\n"):
            yield text
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (lets lines be edited and repeated)
    print("Enter a prompt; an empty line exits.", file=sys.stderr)
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while line := input("> "):
            while line.endswith("\\"):
                line = f"{line[:-1]}\n{input('. ')}"
            yield line


if __name__ == "__main__":
    main()
