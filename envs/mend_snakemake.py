"""Mend what makes Snakemake 9.27.1 slow here.

- It imports every plugin that is installed whenever it starts. The one for Slurm brings pandas, the one for Kubernetes
  its client of 700 modules: half of the time of each `snakemake`, also of one that runs jobs here. They import them
  when they use them.
- It imports pandas to see whether a job's params are of pandas.
- After a job it computes the checksums of all input files once for each output file. Once is enough.

`make` runs this on .venv. Snakemake does the same without it, more slowly.
"""

import importlib.util
from pathlib import Path

from mend_transformers import mend

LATER = '''class Later:
    """Modules that are imported when one is first used; attributes are those of the first."""

    def __init__(self, *names):
        self.names = names

    def __getattr__(self, attribute):
        from importlib import import_module

        return getattr([import_module(name) for name in self.names][0], attribute)


'''
CHECKSUMS = """checksums = {
                    str(infile): await infile.checksum(self.max_checksum_file_size)
                    for infile in job.input
                }
                checksums = {k: v for k, v in checksums.items() if v is not None}

"""
OUTPUTS = """            for f in job.output:
                key = self._get_key(f)
                endtime = (
                    (await f.mtime()).local_or_storage()
                    if await f.exists()
                    else fallback_time
                )

"""
# What it imports pandas for: no value is of pandas where nobody has imported it.
LOADED = 'pd = __import__("sys").modules.get("pandas")\n'
# Package, file, the lines that are wrong, and those that take their place.
MENDS = [
    (
        "snakemake",
        "persistence/__init__.py",
        f"{OUTPUTS}                {CHECKSUMS}",
        f"            {CHECKSUMS}".replace("\n    ", "\n") + OUTPUTS,
    ),
    (
        "snakemake",
        "persistence/__init__.py",
        "        import pandas as pd\n\n        if isinstance(value, (pd.DataFrame",
        f"        {LOADED}\n        if pd and isinstance(value, (pd.DataFrame",
    ),
    (
        "snakemake",
        "iocontainers.py",
        "        try:\n            import pandas as pd\n        except ModuleNotFoundError:\n"
        "            pd = None  # type: ignore[assignment]\n",
        f"        {LOADED}",
    ),
    (
        "snakemake_executor_plugin_slurm",
        "efficiency_report.py",
        "import re\nimport pandas as pd\nfrom pathlib import Path\nimport subprocess\nimport shlex\n"
        "import numpy as np\nimport os\n",
        "import re\nfrom pathlib import Path\nimport subprocess\nimport shlex\nimport os\n\n\n"
        f'{LATER}np, pd = Later("numpy"), Later("pandas")\n',
    ),
    (
        "snakemake_executor_plugin_kubernetes",
        "__init__.py",
        "\nimport kubernetes\nimport kubernetes.config\nimport kubernetes.client\n",
        f'\n\n{LATER}kubernetes = Later("kubernetes", "kubernetes.config", "kubernetes.client")\n',
    ),
]

if __name__ == "__main__":
    for package, file, wrong, right in MENDS:
        if found := importlib.util.find_spec(package):
            mend(Path(found.origin).parent, {file: (wrong, right)})
