"""Run a trained model of results/ on prompts, in a terminal or from options. Can be used while the workflow runs.

    python tools/try.py tiny
    python tools/try.py finetune/python --prompt "def "
    python tools/try.py tiny --prompt "Return the [MASK] of the list."
    python tools/try.py -d experiments/sums finetune/lora < question.txt
    python tools/try.py -d experiments/qa finetune/qa --chat

A masked model fills in the [MASK] of a prompt with five answers and their probabilities. A causal model (base,
finetuned, or an adapter on its base) continues the prompt. It samples by `generation` of its config, or by the defaults
if there is no config. With --chat, a prompt is a message to a model that was trained on questions and answers: it gets
their template, and only the answer is printed. Piped input is one prompt, of any number of lines. At the terminal, a
line that ends with a backslash continues in the next one. The model runs on the CPU, beside a training on the
accelerator, unless JAX_PLATFORMS and CUDA_VISIBLE_DEVICES say otherwise.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

try:
    from tpulm.config.finished_models import Folders, choose_model, folders_of, models, place_of, sampling_in
    from tpulm.config.outline import LIMITS
    from tpulm.core.errors import UserError
    from tpulm.core.experiments import add_directory, enter
    from tpulm.core.files import read_json
    from tpulm.corpus.rows import ChatTemplate
    from tpulm.specs.masked_sizes import opens
    from tpulm.specs.texts import sources_of, template_fields
except ModuleNotFoundError as error:
    sys.exit(f"error: this Python has no {error.name}; activate the environment: `. .venv/bin/activate`.")

Ask = Callable[[str], list[str]]
Template = tuple[Callable[[str], str], str]
OTHERS = ("samples", "seed")  # keys of the config's generation that the command line may have


def masked(folder: Path, prompts: Sequence[str]) -> Ask:
    """Return what answers the prompts of a masked model, of a Hugging Face model folder.

    prompts  those that are known already. Raises UserError where the model could answer none of them
    """
    if prompts and all(prompt.count("[MASK]") != 1 for prompt in prompts):
        check_prompt(prompts[0])
    fill, mask = (on_jax if opens(read_json(folder / "config.json")) else on_tensorflow)(folder)

    def ask(prompt: str) -> list[str]:
        check_prompt(prompt)
        found = fill(prompt.replace("[MASK]", mask))
        return ["\n".join(f"{answer['score']:6.1%}  {visible(answer['token_str'])}" for answer in found)]

    return ask


def check_prompt(prompt: str) -> None:
    """Raise UserError for a prompt that masked models cannot answer."""
    if prompt.count("[MASK]") != 1:
        raise UserError("a masked model needs a prompt with one [MASK].")


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


def causal(folders: Folders, sampling: dict, template: Template | None) -> Ask:
    """Return what continues the prompts of a causal model, or answers them as messages in a template."""
    from tpulm.training import runtime

    runtime.start(os.cpu_count() or 1)
    from tpulm.models.preset_folders import load_preset
    from tpulm.models.sampling import Generator

    model = load_preset(folders.model)
    if folders.adapter:
        model.backbone.enable_lora(**read_json(folders.adapter / "adapter.lora.json"))
        model.backbone.load_lora_weights(str(folders.adapter / "adapter.lora.h5"))
    generate = Generator(model, sampling, 1)

    def continued(prompt: str) -> list[str]:
        return [f"{prompt}{found.text}" for found in generate([prompt])[0]]

    if template is None:
        return continued
    write, ending = template
    return lambda message: [before(ending, found.response) for found in generate([write(message)])[0]]


def template_of(folders: Folders, text: Mapping) -> Template:
    """Return what writes a message as in the text that a model was trained on, and the marker that ends an answer.

    folders  of the model; text  recipe of the text. Raises UserError for a text of another kind.
    """
    if folders.chat:
        chat = ChatTemplate(read_json(folders.chat))
        ending = chat.described().get("ending", "")
        return lambda message: chat.prompt("the prompt", [{"role": "user", "content": message}]), ending
    asking = [source["template"] for _, source in sources_of("", text).values() if "response" in source]
    parts = template_fields("template", asking[0]) if asking else []
    if len([field for _, field in parts if field]) != 1:
        raise UserError("the model was not trained on questions and answers; allowed: a prompt without --chat.")
    return lambda message: "".join(text + (message if field else "") for text, field in parts), ""


def before(ending: str, response: str) -> str:
    """Return a response up to the marker that ends an answer; ending  "" without one."""
    return response.partition(ending)[0].strip() if ending else response


def opened(asked: argparse.Namespace) -> Ask:
    """Return what answers the prompts of the model that was asked for. Raises UserError."""
    results, run, config = place_of(asked.run, asked.configfile, asked.results)
    stage, name = choose_model(run, models(results), results)
    folders = folders_of(stage, name, results, config)
    if stage == "mlm":
        if asked.chat:
            raise UserError(f"--chat is for causal models; mlm/{name} is a masked model.")
        return masked(folders.model, asked.prompt or [])
    given = {key: getattr(asked, key) for key in (*LIMITS, *OTHERS) if getattr(asked, key) is not None}
    text = config.get("corpus", {}) if stage == "base" else config.get("finetune", {}).get("text", {})
    template = None
    if asked.chat:
        template = template_of(folders, text)
    else:
        with contextlib.suppress(UserError):  # of a model that was not trained on questions and answers
            template_of(folders, text)
            print("note: with --chat, a prompt is a question in the template of the training text", file=sys.stderr)
    return causal(folders, sampling_in(config, given), template)


def main() -> None:
    """Answer the prompt of the command line, or those that are typed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run: its name, STAGE/RUN if the name is ambiguous, or its folder")
    parser.add_argument("--prompt", action="append", help="run the model on this prompt and exit; repeatable")
    parser.add_argument("--chat", action="store_true", help="take prompts as messages, in the template of the rows")
    parser.add_argument("--configfile", type=Path, nargs="+", help="as for snakemake")
    parser.add_argument("--results", type=Path, help="where the models are; default: the results of the config")
    limit = parser.add_mutually_exclusive_group()
    for group, keys in ((limit, LIMITS), (parser, OTHERS)):
        for key in keys:
            group.add_argument(
                f"--{key.replace('_', '-')}", type=int, help=f"instead of generation.{key} of the config"
            )
    add_directory(parser)
    asked = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    try:
        enter(asked)
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
        try:
            text = sys.stdin.read().removesuffix("\n")
            text.encode()  # in some locales, what is not UTF-8 is read as surrogates
        except UnicodeError:
            sys.exit("error: standard input is not UTF-8 text.")
        if text:
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
