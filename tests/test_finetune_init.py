"""A finetuning run that starts from the weights of another one."""

import numpy as np
import warm
from conftest import copied, write_yaml
from safetensors.numpy import load_file
from tpulm.config.reading import read_yaml


def test_the_first_segment_starts_from_the_best_weights_of_the_other_run(trained, tmp_path):
    workflow = copied(trained, tmp_path)
    config = read_yaml(workflow / "config.yaml")
    other = config["finetune"]["runs"]["python"]
    learns_nothing = {"learning_rate": 1e-12, "schedule": {"shape": "constant"}, "steps": 1, "checkpoint_every": 1}
    config["finetune"]["runs"]["second"] = other | learns_nothing | {"init": "python"}
    write_yaml(workflow / "config.yaml", config)
    made = "results/finetune/second/checkpoints/00000001"
    warm.run("jax", warm.DEBUG, f"{made}/state.json", folder=workflow.folder)
    found = load_file(workflow / "debug" / made / "weights.safetensors")
    best = load_file(workflow / "results/finetune/python/checkpoints/00000010/best.safetensors")
    assert set(found) == set(best) and any(np.abs(array).max() > 0 for name, array in best.items() if "_b" in name)
    for name, array in best.items():
        np.testing.assert_allclose(found[name], array, atol=1e-8, err_msg=name)
