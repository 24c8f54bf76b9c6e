"""Select the checkpoint of a run with the best score: its weights, and the state that names it.

input.scores      scores.json of each checkpoint, see tpulm.core.scores
input.states      state.json of each, in the same order; input.weights  safetensors of each
output.weights    those of the checkpoint that is selected; of several as good, the first
output.state      state.json of the last checkpoint, in which `best` is the one that is selected: step and evaluation,
                  also score (its name) and value
params.recipe     group and on, of the score
"""

import shutil

from tpulm.core.errors import UserError
from tpulm.core.files import atomic_write, read_json, write_json
from tpulm.core.job import job
from tpulm.core.scores import WHOLE, read_scores

recipe, chain = snakemake.params.recipe, snakemake.wildcards.chain

with job(snakemake.log[0], chain) as say:
    found = []
    for path in snakemake.input.scores:
        own = [
            score
            for score in read_scores(path)[1]
            if (score.group, score.on, score.part) == (recipe["group"], recipe["on"], WHOLE)
        ]
        if not own:
            raise UserError(
                f"evaluation.select_by: {path} has no score of {recipe['group']} on {recipe['on']}; allowed: a set "
                "with items."
            )
        found.append(own[0])
    sign = 1 if found[0].higher_is_better else -1
    number = max(range(len(found)), key=lambda index: (sign * found[index].value, -index))
    state, score = read_json(snakemake.input.states[-1]), found[number]
    evaluation = read_json(snakemake.input.states[number])["evaluation"]
    best = {"step": score.step, "evaluation": evaluation, "score": score.name, "value": score.value}
    with atomic_write(snakemake.output.weights) as partial:
        shutil.copyfile(snakemake.input.weights[number], partial)
    write_json(snakemake.output.state, state | {"best": best})
    say(f"selected step {score.step} of {len(found)} checkpoints: {score.name} {score.value:.4f}")
