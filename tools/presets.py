"""Print the causal presets of keras-hub that can be base models: `make presets` writes schemas/presets.txt."""

import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from keras_hub.models import CausalLM  # noqa: E402
from tpulm.config.checks import WITHOUT_COUNTERPART  # noqa: E402

for name, preset in sorted(CausalLM.presets.items()):
    if not name.startswith(WITHOUT_COUNTERPART):
        print(name, preset["metadata"]["params"])
