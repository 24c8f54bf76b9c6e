"""Open the model of a task, which predicts labels."""

from pathlib import Path

import jax
import numpy as np

from tpulm.core.arrays import load_arrays
from tpulm.core.errors import UserError
from tpulm.core.files import read_json
from tpulm.demo.checkpoints import HERE
from tpulm.demo.choice import Prompt, Settings, Tell
from tpulm.models import masked_models
from tpulm.models.task_models import build_task_model
from tpulm.models.variables import assign
from tpulm.specs.artifacts import CHECKPOINT_FILES
from tpulm.specs.classification_heads import NUMBER
from tpulm.training.jax_run import distribute_step
from tpulm.training.task_run import encoder, task_step

LIKELIEST = 5  # number of labels that are shown


class Labels:
    """The model of a task in the demo."""

    def __init__(self, folder: Path, task: Path, best: Path, texts: int):
        """Open the model. Raises UserError for weights of another model.

        folder  of the masked model that was finetuned on the task
        task    folder of the task in results
        best    trained variables
        texts   number of texts of an example
        """
        self.texts = texts
        described = read_json(task / "task.json")
        recipe = read_json(best.with_name(CHECKPOINT_FILES["state"]))["recipe"] | HERE
        step = task_step(recipe | {"seed": 0}, folder, described)
        self.model = build_task_model(step, distribute_step(step, masked_models), folder, weights=False)
        assign(self.model.trainable_variables, load_arrays(str(best)), str(best))
        self.encode, self.labels, self.predict = encoder(folder, recipe), described["labels"], recipe["predict"]

    def answer(self, prompt: Prompt, settings: Settings, tell: Tell) -> None:
        """Send the likeliest labels of one or two texts with their probabilities, or the predicted number."""
        texts = [prompt] if isinstance(prompt, str) else prompt
        if len(texts) != self.texts or not all(isinstance(text, str) and text.strip() for text in texts):
            raise UserError(f"this task takes {'one text' if self.texts == 1 else 'two texts'}.")
        columns = {name: [text] for name, text in zip(("text", "text_pair"), texts, strict=False)}
        arrays = self.encode(columns | {"label": [0]})
        inputs = {"token_ids": arrays["input_ids"], "padding_mask": arrays["attention_mask"]}
        logits = self.model(inputs, training=False)[0]
        if self.predict == NUMBER:
            tell({"number": float(logits[0])})
            return
        shares = np.asarray(jax.nn.softmax(logits))
        order = np.argsort(-shares, kind="stable")[:LIKELIEST]
        tell({"labels": [(str(self.labels[number]), float(shares[number])) for number in order]})
