"""Write a short config that trains language models on a text, or finetunes a published one on it.

    python tools/new_config.py PATH...                       small models, minutes on two CPU cores
    python tools/new_config.py PATH... --accelerator v5e-8   models and batches for this accelerator
    python tools/new_config.py PATH... --finetune gemma3_instruct_1b --accelerator v5e-8

PATH is a file, a folder, a glob, or a dataset hf://OWNER/NAME. A model to finetune with LoRA is a preset of keras-hub
(schemas/presets.txt), the newest revision of a model hf://OWNER/NAME, or a local folder. The config is that of an
experiment, experiments/NAME/config.yaml, which is never overwritten. Standard error has findings, choices, times and
the next commands.
"""

import argparse
import os
import re
import shlex
import sys
from pathlib import Path

# Runs have one thread, so the speed of one thread is measured. numpy reads this when it is imported.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tools")]

try:
    from newconfig.finetuning import find_base
    from newconfig.sample import look
    from newconfig.sizes import estimate
    from newconfig.writing import config_of, lines_of, name_of, seen_from, tuning_config_of
    from ruamel.yaml import YAML
    from tpulm.config.reading import complete
    from tpulm.core.errors import UserError
    from tpulm.core.experiments import CONFIG
    from tpulm.core.files import write_text
    from tpulm.corpus.sources import ALLOWED, parts_of
except ModuleNotFoundError as error:
    sys.exit(f"error: this Python has no {error.name}; activate the environment: `. .venv/bin/activate`.")

NAME = "[a-z0-9][a-z0-9_-]{0,63}"


def main() -> None:
    """Write the config of the text that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", metavar="PATH", nargs="+", help=f"{ALLOWED}; a folder; a glob; hf://OWNER/NAME")
    parser.add_argument("--accelerator", help="a TPU slice such as v5e-8, or GPUs such as h100:4; default: CPUs")
    parser.add_argument("--finetune", metavar="MODEL", help="a preset of keras-hub, hf://OWNER/NAME, or a folder")
    parser.add_argument("--columns", help="the columns to train on: PROMPT,RESPONSE, or one column")
    parser.add_argument("--experiment", metavar="NAME", help="default: the name of the text")
    parser.add_argument(
        "--stdout", action="store_true", help="print the config, with paths as typed, and write nothing"
    )
    asked = parser.parse_args()
    accelerator = asked.accelerator and asked.accelerator.lower().replace("v5litepod", "v5e")  # as gcloud has it
    name = asked.experiment or name_of(asked.paths)
    folder = ROOT / "experiments" / name
    try:
        if not re.fullmatch(NAME, name):
            raise UserError(f"--experiment is {name}; allowed: up to 64 of a-z, 0-9, _ and -, a letter or digit first.")
        if accelerator == "":
            raise UserError("--accelerator is empty; allowed: a TPU slice such as v5e-8, or GPUs such as h100:4.")
        base = find_base(asked.finetune) if asked.finetune is not None else None
        columns = [] if asked.columns is None else asked.columns.split(",")
        if len(columns) > 2 or len({"", *columns}) <= len(columns):
            raise UserError(f"--columns is {asked.columns}; allowed: PROMPT,RESPONSE, or one column.")
        text = look(asked.paths, columns, base.tuning() if base else None)
        if base:
            written = tuning_config_of(text, base, accelerator, name)
        else:
            written = config_of(text, asked.paths, accelerator)
        if (folder / CONFIG).exists() and not asked.stdout:
            raise UserError(f"{os.path.relpath(folder / CONFIG)} is there already; name another one with --experiment.")
        config = complete(YAML(typ="safe", pure=True).load(written), "the config")
        where, recipe = ("finetune.text", config["finetune"]["text"]) if base else ("corpus", config["corpus"])
        parts_of(where, recipe)  # its globs find the files
    except UserError as error:
        sys.exit(f"error: {error}")
    if base:
        config["base"][base.name] |= base.place  # where its sizes are known
    option = "" if asked.stdout else f" -d experiments/{name}"
    time = f"`snakemake plan{option}` compiles the runs and estimates memory and time."
    if not config["plan"]["topologies"]:
        time = "none, because only TPUs have plans." if accelerator else estimate(config)
    said = [f"found: {text.found}", *(f"note: {note}." for note in text.notes), f"estimate: {time}"]
    print(*said, sep="\n", file=sys.stderr)
    if asked.stdout:
        print(written, end="")
        return
    for keys, indent in [(text.source, 4), (base.keys, 4)] if base else [(text.source, 2)]:
        written = written.replace(lines_of(keys, indent), lines_of(seen_from(folder, keys), indent))
    write_text(folder / CONFIG, written)
    if base:
        prompt = f"--prompt {shlex.quote(config['prompts']['generate'][0])}"
        answer = f"finetune/{name} {prompt if 'column' in text.source else '--chat'}"
        targets = ["-n", *["plan"] * bool(config["plan"]["topologies"]), ""]
    elif text.prompts and config["prompts"]["generate"]:  # which masked models do not answer
        prompt = shlex.quote(config["prompts"]["generate"][0].strip())
        chat = "--chat " if text.source.get("template", "").count("{") == 1 else ""  # a question, and no markup of it
        answer = f"{next(iter(config['base']))} {chat}--prompt {prompt}"
        targets = ["base"]
    else:
        answer, targets = next(iter(config["mlm"]["runs"])), ["mlm"]
    commands = [
        *(f"snakemake{option} {target}".rstrip() for target in targets),
        f"python tools/try.py{option} {answer}",
    ]
    said = "to train, and then to try the model"
    if not base:
        commands.append(f"snakemake{option}")
        said = "to train one model and try it, and then to make the rest"
    there = "" if Path.cwd() == ROOT else f"cd {shlex.quote(str(ROOT))} && "
    lines = [f"written: {os.path.relpath(folder / CONFIG)}; {said}:", *(f"  {there}{command}" for command in commands)]
    print(*lines, sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main()
