"""Print the causal presets of the installed keras-hub, with their parameters: `make presets` writes schemas/presets.txt."""

import os

os.environ["KERAS_BACKEND"] = "jax"

from keras_hub.models import CausalLM  # noqa: E402

for name, preset in sorted(CausalLM.presets.items()):
    print(name, preset["metadata"]["params"])
