"""Fetch an existing base model: a keras-hub preset, a pinned model of a hub, or a local preset folder.

input.files              files of a local preset folder; none for a preset that is downloaded
output.folder            preset folder
output.fingerprint       JSON: the SHA-256 of each of its files
params.recipe.preset     folder, name, or handle
params.recipe.revision   commit of an hf:// repository, otherwise null
"""

import shutil
import traceback

from tpulm.core import hub
from tpulm.core.errors import UserError, first_line
from tpulm.core.files import fingerprints, write_json
from tpulm.core.foreign_folders import PICKLES, check_preset
from tpulm.core.job import fault_of_machine, job, memory_error
from tpulm.models.presets import is_keras_preset, locate
from tpulm.training import runtime

recipe, run = snakemake.params.recipe, snakemake.wildcards.run

with job(snakemake.log[0], f"base {run}") as say:
    runtime.start(cpu_threads=1, repeats=False, on_cpu=True)
    from tpulm.models.from_transformers import load_transformers
    from tpulm.models.preset_folders import atomic_folder, load_text, reads_more, save_preset

    where = f"base.{run}.preset"
    source = hub.named_source(where, recipe["preset"], recipe["revision"])
    say(f"fetching {recipe['preset']}")
    folder = locate(recipe["preset"], recipe["revision"], source)
    if not (folder / "config.json").is_file():
        raise UserError(f"{source}, which is not a preset folder: it has no config.json.")
    check_preset(folder, source)
    if is_keras_preset(folder) and reads_more(folder):
        say("saving the part that reads text, without images and sound")
        save_preset(load_text(folder), snakemake.output.folder)
    elif is_keras_preset(folder):
        unread = shutil.ignore_patterns(".*", "*.py", *(f"*{suffix}" for suffix in PICKLES))
        with atomic_folder(snakemake.output.folder) as partial:
            shutil.copytree(folder, partial, dirs_exist_ok=True, ignore=unread)
    else:
        say("converting it to a Keras preset")
        try:
            model = load_transformers(folder, where)
        except Exception as error:  # whatever keras-hub raises, and what it reads files with
            if isinstance(error, UserError) or fault_of_machine(error) or memory_error(error):
                raise
            traceback.print_exc()  # to the log
            raise UserError(f"{source}, which cannot be opened ({first_line(error)}).") from None
        save_preset(model, snakemake.output.folder)
    write_json(snakemake.output.fingerprint, fingerprints(snakemake.output.folder))
    say(f"saved as {snakemake.output.folder}")
