"""Put the figures of a tuning run together: its losses, and how much its samples look like Python.

input.evaluation    JSON, as evaluate_lora writes it
input.state         state.json of the last checkpoint
input.generations   JSON, samples before and after, as generate writes them
output              JSON: best_step, what evaluate_lora measured, how much the samples look like Python
"""

from lib.files import read_json, write_json
from lib.job import job
from lib.python_likeness import parse_share, token_rate

with job(snakemake.log[0], f"lora {snakemake.wildcards.run}") as say:
    prompts = read_json(snakemake.input.generations)["prompts"]
    likeness = {}
    for moment in ("before", "after"):
        made = [text for prompt in prompts for text in prompt[moment]]
        likeness[moment] = {"python_token_rate": token_rate(made), "python_parse_share": parse_share(made)}
    write_json(
        snakemake.output[0],
        {
            "best_step": read_json(snakemake.input.state)["best"]["step"],
            **read_json(snakemake.input.evaluation),
            "samples": likeness,
        },
    )
    rates = (likeness[moment]["python_token_rate"] for moment in ("before", "after"))
    say("marks of Python per word of the samples: {:.4f} before, {:.4f} after".format(*rates))
