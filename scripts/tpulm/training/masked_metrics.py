"""metrics.json of a masked language model, whichever library measures it.

parameters               of the model
steps, epochs            of what was trained here
validation, test         loss (nats per masked token), accuracy, perplexity, predictions, unigram_entropy (nats per
                         token: the loss without context)
measured_as              of which kind these are, see tpulm.core.scores.measured_as
attention                its implementation in training, where an accelerator could have several
determinism              with determinism: steps, and then bytes_promised: false
"""

from collections.abc import Callable, Mapping
from typing import Any

from tpulm.config.training_step import promised
from tpulm.core.files import read_json
from tpulm.core.scores import MASKED, measured_as
from tpulm.records.masked_batches import unigram_entropy
from tpulm.records.reader import Records, read_manifest
from tpulm.records.streaming import open_records
from tpulm.training.checkpoint import how_trained, trained_for


def masked_metrics(
    run: str,
    inputs: Any,
    recipe: Mapping,
    parameters: int,
    measure: Callable[[Records], dict[str, float]],
    say: Callable,
) -> dict:
    """Return the metrics of a model, and say those of each split.

    run      its name
    inputs   of the job: records; state, none for a pretrained model
    measure  returns the figures of `held_out_figures` on records
    """
    metrics = {"parameters": parameters} | measured_as(MASKED, f"mlm/{run}") | promised(recipe)
    if inputs.state:
        state = read_json(inputs.state)
        metrics |= trained_for(state, read_manifest(inputs.records)) | how_trained(state)
    for split in ("validation", "test"):
        records = open_records(inputs.records, split)
        figures = metrics[split] = measure(records) | {"unigram_entropy": unigram_entropy(records)}
        say(
            f"{split}: loss {figures['loss']:.4f} (unigram entropy {figures['unigram_entropy']:.4f}), "
            f"accuracy {figures['accuracy']:.3f}, perplexity {figures['perplexity']:.1f}"
        )
    return metrics
