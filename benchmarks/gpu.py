"""Training on one NVIDIA GPU beside transformers and PEFT with torch.compile: tokens/s and MFU, by turns.

    python benchmarks/gpu.py --torch-python ENVIRONMENT/bin/python [--rounds 5]
    python benchmarks/gpu.py --torch-python ... --tiny      the same at tiny size on a CPU; nothing is written

RoBERTa-base (512 tokens, 15 % of them predicted, weights in float32, arithmetic in bfloat16), and LoRA of Gemma 7B
(rank 4 on query and value, 512 tokens, base in bfloat16, adapters in float32). Weights are drawn and records random, so
nothing is downloaded. Neither model has dropout of attention probabilities, which no fused attention has. Both ways
train the same number of records of the same length at a time: what the batch sizes below say, halved until both fit the
card side by side. jax_worker.py is this workflow, with `determinism: steps`; torch_worker.py the other way.

This Python needs what envs/jax-gpu.txt has, no TensorFlow; that of --torch-python a PyTorch for CUDA, transformers and
peft. Prints a table and writes it to benchmarks/results/gpu.md. MFU is by the FLOPs that a step needs at the least
(tpulm.training.jax_run), the same for both ways, and the card's published bfloat16 peak.
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from tpulm.core.accelerators import peak_flops
from worker import Ended, Worker

HERE = Path(__file__).parent
RESULT = HERE / "results/gpu.md"
WAYS = ("this workflow", "transformers")
AIM, AIM_MFU = 1.3, 0.5
WARM = 3  # steps that compile; then as many again, timed for the number of steps in a round
LENGTH, PREDICTED, RANK = 512, 77, 4  # 15 % of 512
OPTIMIZER = {"weight_decay": 0.01, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8, "global_clipnorm": None}
COMMON = {"packing": "concat", "microbatches": 1, "steps_per_execution": 1, "remat": False, "seed": 0, "mesh": [1, 1],
          "optimizer": OPTIMIZER, "determinism": "steps"}  # fmt: skip
OUT_OF_MEMORY = ("out of memory", "resource_exhausted", "failed to allocate")


class Case(NamedTuple):
    """What is trained: by this workflow a stage and a recipe, by transformers a kind and the sizes of its config."""

    title: str
    batch_size: int
    stage: str
    recipe: dict
    torch: dict


def cases(tiny: bool) -> list[Case]:
    """Return both cases."""
    length, predicted = (128, 20) if tiny else (LENGTH, PREDICTED)
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    base = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
    masked = (small if tiny else base) | {"max_position_embeddings": length + 2, "attention_probs_dropout_prob": 0}
    layers, heads, hidden, inner, head = (2, 2, 32, 64, 16) if tiny else (28, 16, 3072, 24_576, 256)
    words, ids = (512, 512) if tiny else (50_265, 256_000)
    gemma = {
        "architecture": "gemma", "num_layers": layers, "num_query_heads": heads, "num_key_value_heads": heads,
        "hidden_dim": hidden, "intermediate_dim": 2 * inner, "head_dim": head,
    }  # fmt: skip
    of_gemma = {
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads, "hidden_size": hidden,
        "intermediate_size": inner, "head_dim": head, "vocab_size": ids, "hidden_activation": "gelu_pytorch_tanh",
    }  # fmt: skip
    masking = {"mlm_probability": predicted / length, "mask_replace_prob": 0.8, "random_replace_prob": 0.1}
    common = COMMON | {"sequence_length": length}
    return [
        Case(
            f"RoBERTa-base, {length} tokens", 4 if tiny else 64, "mlm",
            common | {"precision": "mixed_bfloat16", "masking": masking, "vocabulary": {"size": words, "pad": 1},
                      "model": {"architecture": "roberta"} | masked},
            {"kind": "roberta", "length": length, "predicted": predicted,
             "sizes": masked | {"vocab_size": words, "type_vocab_size": 1, "layer_norm_eps": 1e-5}},
        ),
        Case(
            f"Gemma 7B, LoRA of rank {RANK}, {length} tokens", 4 if tiny else 8, "finetune",
            common | {"precision": "bfloat16", "method": "lora", "rank": RANK,
                      "base": {"model": gemma, "vocab_size": ids}},
            {"kind": "gemma", "length": length, "rank": RANK, "sizes": of_gemma},
        ),
    ]  # fmt: skip


def start(
    case: Case, batch_size: int, arguments: argparse.Namespace, folder: Path, stack: contextlib.ExitStack
) -> dict[str, Worker]:
    """Return the processes of both ways, each after the compilation of its step; the stack ends them."""
    ours = {
        "stage": case.stage,
        "recipe": case.recipe | {"batch_size": batch_size},
        "threads": os.cpu_count(),
        "devices": 1,
    }
    other = case.torch | {"batch_size": batch_size, "compile": arguments.compile}
    commands = {
        WAYS[0]: [sys.executable, HERE / "jax_worker.py", json.dumps(ours)],
        WAYS[1]: [arguments.torch_python, HERE / "torch_worker.py", json.dumps(other)],
    }
    workers: dict[str, Worker] = {}
    for way, command in commands.items():
        # Otherwise JAX takes three quarters of the card for itself.
        alone = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        workers[way] = Worker(command, folder / way / f"{batch_size}.log", alone)
        stack.callback(workers[way].end)
        workers[way].ask(f"train {WARM}")
    return workers


def measured(case: Case, batch_size: int, arguments: argparse.Namespace, folder: Path) -> dict:
    """Return what both ways are and the answers of their rounds, by turns, with so many records in a batch."""
    with contextlib.ExitStack() as stack:
        workers = start(case, batch_size, arguments, folder, stack)
        abouts = {way: worker.ask("about") for way, worker in workers.items()}
        slowest = max(worker.ask(f"train {WARM}")["seconds"] / WARM for worker in workers.values())
        steps = max(1, round(arguments.seconds / slowest))
        rounds: dict[str, list[dict]] = {way: [] for way in workers}
        for _ in range(arguments.rounds):
            for way, worker in workers.items():
                rounds[way].append(worker.ask(f"train {steps}"))
                print(f"{way}: {1e3 * rounds[way][-1]['seconds'] / steps:.1f} ms a step", file=sys.stderr)
        return {"abouts": abouts, "steps": steps, "rounds": rounds, "batch_size": batch_size}


def fitting(case: Case, arguments: argparse.Namespace, folder: Path) -> dict:
    """Return what `measured` does, with the largest batch that fits: that of the case, halved until it does."""
    batch_size = case.batch_size
    while True:
        try:
            return measured(case, batch_size, arguments, folder)
        except Ended as error:
            if batch_size == 1 or not any(words in str(error).lower() for words in OUT_OF_MEMORY):
                raise
            batch_size //= 2
            print(f"{case.title}: too large for the card; {batch_size} records", file=sys.stderr)


def rows(title: str, found: dict) -> list[str]:
    """Return the rows of a case: medians, with the lowest and the highest; a ratio is that of two rounds in turn."""
    about = found["abouts"][WAYS[0]]
    peak = peak_flops(about["device"])
    taken = {
        way: [answer["seconds"] / found["steps"] for answer in answers] for way, answers in found["rounds"].items()
    }
    lines = []
    for way, seconds in taken.items():
        speeds = [about["tokens"] / value for value in seconds]
        ratios = [other / own for own, other in zip(seconds, taken[WAYS[1]], strict=True)]
        mfu = about["model_flops"] / (statistics.median(seconds) * peak) if peak else None
        answers = found["rounds"][way]
        cells = [
            title if way == WAYS[0] else "",
            f"{found['batch_size']}",
            way,
            f"{statistics.median(speeds):,.0f} ({min(speeds):,.0f} to {max(speeds):,.0f})",
            "" if mfu is None else f"{mfu:.1%}",
            "1" if way == WAYS[1] else f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            "" if way == WAYS[1] else aims(statistics.median(ratios), mfu),
            f"{answers[0]['loss']:.2f} {answers[-1]['loss']:.2f}",
            "" if answers[-1]["peak_bytes"] is None else f"{answers[-1]['peak_bytes'] / 2**30:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def aims(ratio: float, mfu: float | None) -> str:
    """Return the aims of this workflow, each with whether it is missed."""
    missed = (ratio < AIM, mfu is not None and mfu < AIM_MFU)
    return "; ".join(f"{aim}{' (miss)' * miss}" for aim, miss in zip((AIM, f"{AIM_MFU:.0%}"), missed, strict=True))


def driver() -> str:
    """Return name and driver of the card, as nvidia-smi says it; nothing where it does not."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        return subprocess.check_output(query, text=True).splitlines()[0]
    except (OSError, subprocess.CalledProcessError):
        return "no NVIDIA GPU"


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-python", default=sys.executable, help="a Python that has PyTorch, transformers, peft")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a round, about")
    parser.add_argument("--compile", default="inductor", help="backend of torch.compile")
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    card = driver()
    if card == "no NVIDIA GPU" and not arguments.tiny:
        sys.exit("error: there is no NVIDIA GPU here; to try this without one: python benchmarks/gpu.py --tiny")
    table = [
        "| model | records | trained by | tokens/s | MFU | ratio | targets | loss, first and last round | GiB |",
        "| --- | ---: | --- | --- | ---: | --- | --- | --- | ---: |",
    ]
    with tempfile.TemporaryDirectory() as temporary:
        for index, case in enumerate(cases(arguments.tiny)):
            try:
                found = fitting(case, arguments, Path(temporary) / str(index))
            except Ended as error:
                sys.exit(f"error: {case.title}: a way has ended:\n{error}")
            table += rows(case.title, found)
            if not arguments.tiny:  # so that a case that fails costs none of those before it
                RESULT.write_text("\n".join(result(card, found["abouts"], arguments, table)) + "\n")
    print("\n".join(result(card, found["abouts"], arguments, table)))


def result(card: str, abouts: dict, arguments: argparse.Namespace, table: list[str]) -> list[str]:
    """Return what was measured, on what, as lines of Markdown; abouts of both ways, as `measured` returns it."""
    head = (
        f"{card}, Python {platform.python_version()}; "
        f"{abouts[WAYS[0]]['versions']}; {abouts[WAYS[1]]['versions']}, torch.compile with {arguments.compile}; "
        f"attention of this workflow: {abouts[WAYS[0]]['attention']}. Medians of {arguments.rounds} rounds, lowest "
        "and highest in brackets. The two programs take turns. The records are random."
    )
    today = datetime.datetime.now(datetime.UTC).date()
    return [f"`python benchmarks/gpu.py`, {today}.", "", head, "", *table]


if __name__ == "__main__":
    main()
