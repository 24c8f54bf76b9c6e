"""Train a model of transformers, with PEFT's LoRA where it is asked for, on random records; see gpu.py.

    python benchmarks/torch_worker.py JOB

Needs PyTorch, transformers and PEFT, and of this repository worker.py. JOB is a JSON object: kind, roberta or gemma;
sizes, arguments of transformers' config; rank of LoRA, for gemma; batch_size; length, tokens of a record; predicted,
masked positions of a record, for roberta; compile, the backend of torch.compile. Commands come a line each, and each is
answered by a line of JSON:

    about      device, tokens of a step, versions
    train N    seconds of the next N steps; loss of the last; peak_bytes, the most memory that was in use

What it does is what a user of the two libraries would do for speed on one GPU: torch.compile, PyTorch's scaled
dot-product attention, its fused AdamW, weights in float32 under bfloat16 autocast (RoBERTa), or a base in bfloat16
under adapters in float32 (Gemma).
"""

import contextlib
import json
import sys
import time

import torch
import transformers
from worker import serve

RATE, IGNORED, MASK = 1e-4, -100, 4
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def synchronize() -> None:
    """Wait until the GPU has done what it was told."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def roberta(job: dict) -> torch.nn.Module:
    """Return a masked language model with weights in float32."""
    config = transformers.RobertaConfig(**job["sizes"], attn_implementation="sdpa")
    with DEVICE:
        return transformers.RobertaForMaskedLM(config)


def gemma(job: dict) -> torch.nn.Module:
    """Return a causal language model in bfloat16 with LoRA of query and value in float32."""
    import peft

    config = transformers.GemmaConfig(**job["sizes"], attn_implementation="sdpa")
    with DEVICE:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    lora = peft.LoraConfig(r=job["rank"], lora_alpha=job["rank"], target_modules=["q_proj", "v_proj"])
    return peft.get_peft_model(model, lora)


class Training:
    """A model, its optimizer, and what the commands do with them."""

    def __init__(self, job: dict):
        """Build them; see the top of this file."""
        torch.manual_seed(0)
        torch.set_float32_matmul_precision("high")
        self.job = job
        model = {"roberta": roberta, "gemma": gemma}[job["kind"]](job).to(DEVICE).train()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.01, fused=True)
        self.model = torch.compile(model, backend=job["compile"])
        self.autocast = (
            torch.autocast(DEVICE.type, torch.bfloat16) if job["kind"] == "roberta" else contextlib.nullcontext()
        )

    def about(self) -> dict:
        """Return what is trained on, and by what."""
        name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu"
        versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
        return {"device": name, "tokens": self.job["batch_size"] * self.job["length"], "versions": versions}

    def batch(self) -> dict[str, torch.Tensor]:
        """Return random records; of those for a masked model, evenly spread positions are predicted."""
        shape = (self.job["batch_size"], self.job["length"])
        ids = torch.randint(5, self.job["sizes"]["vocab_size"], shape)
        labels = ids
        if "predicted" in self.job:
            labels = torch.full(shape, IGNORED)
            chosen = torch.linspace(1, shape[1] - 2, self.job["predicted"]).long()
            labels[:, chosen] = ids[:, chosen]
            ids = ids.clone()
            ids[:, chosen] = MASK
        return {name: value.to(DEVICE, non_blocking=True) for name, value in (("input_ids", ids), ("labels", labels))}

    def train(self, steps: str) -> dict:
        """Train so many steps."""
        more = {} if "predicted" in self.job else {"use_cache": False}
        synchronize()
        began = time.perf_counter()
        for _ in range(int(steps)):
            with self.autocast:
                loss = self.model(**self.batch(), **more).loss
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        synchronize()
        peak = torch.cuda.max_memory_allocated() if DEVICE.type == "cuda" else None
        return {"seconds": time.perf_counter() - began, "loss": float(loss.detach()), "peak_bytes": peak}


if __name__ == "__main__":
    serve(lambda: Training(json.loads(sys.argv[1])))
