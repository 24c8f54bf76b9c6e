"""Print keras-hub's causal presets with their parameters: `make presets` writes schemas/presets.txt."""

import os

os.environ["KERAS_BACKEND"] = "jax"

from keras_hub.models import CausalLM  # noqa: E402

for name, preset in sorted(CausalLM.presets.items()):
    print(name, preset["metadata"]["params"])
