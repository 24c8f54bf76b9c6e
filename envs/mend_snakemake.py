"""Mend what makes Snakemake 9.27.1 slow here, and what it says of a config that it cannot read.

- It imports every plugin that is installed whenever it starts. The one for Slurm brings pandas, the one for Kubernetes
  its client of 700 modules, the one for Google Cloud Storage that client: most of the time of each `snakemake`, also of
  one that runs jobs here. They import them when they use them.
- It imports an interface to databases, in which its metadata can be; a reader of notebooks, for scripts that are none;
  clients of all clouds, to read the Snakefile from a disk; NumPy, to see whether a value of a profile is of NumPy; and
  what makes HTML of captions, for its report.
- It imports pandas and NumPy to see whether a job's params are of theirs.
- After a job it computes the checksums of all input files once for each output file. Once is enough.
- For each kind of plugin it looks into every folder of every installed package. Those with the prefix are enough.
- It makes many objects and drops few, through which Python goes again and again to find those that are garbage.
- It parses all Snakefiles at each start. Those that are as they were need not be.
- A script imports most of it, to unpickle one object of a module that needs nothing, and to have a logger.
- Each time that it looks for jobs to start, it starts a timer to look again a second later, and waits for the last one
  when it ends. One timer at a time is enough, and nothing waits for it.

And what it says of a config file: one that is not there is a traceback, one that is no YAML has no name.

`make` runs this on .venv. Without it, Snakemake makes the same, more slowly.
"""

import importlib.util
from pathlib import Path

from mend_transformers import mend
from mended_snakemake import (
    CAPTIONS,
    CAPTIONS_LATER,
    DOCUTILS,
    FEW_COLLECTIONS,
    IN_DATABASE,
    IN_FILES,
    LATER,
    NAMED,
    NUMPY,
    NUMPY_LOADED,
    OPENED,
    PARSE,
    PLUGINS,
    RETRIED,
    SHELL_LATER,
    TIMER,
    TOP_LEVEL,
    UNREAD,
)  # fmt: skip

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
        "persistence/__init__.py",
        "import WorkflowError\nfrom sqlalchemy import Column, JSON\nfrom sqlmodel import SQLModel, Field\n\n"
        "from snakemake.common.tbdstring",
        "import WorkflowError\n\nfrom snakemake.common.tbdstring",
    ),
    ("snakemake", "persistence/__init__.py", IN_DATABASE, IN_FILES),
    (
        "snakemake",
        "persistence/db.py",
        "from typing import Iterable\n\nimport psutil\nfrom sqlalchemy import (\n",
        "from typing import Any, Iterable\n\nimport psutil\nfrom sqlalchemy import (\n    JSON,\n    Column,\n",
    ),
    (
        "snakemake",
        "persistence/db.py",
        "from snakemake.persistence import MetadataRecord, PersistenceBase\n"
        "from snakemake.logging import logger\nimport snakemake.exceptions\n",
        "from snakemake.persistence import MetadataRecord as Record, PersistenceBase\n"
        "from snakemake.logging import logger\nimport snakemake.exceptions\n\n\n"
        f"{IN_DATABASE}    __getitem__, get, keys, items = Record.__getitem__, Record.get, Record.keys, Record.items\n",
    ),
    (
        "snakemake",
        "workflow.py",
        "import FilePersistence\nfrom snakemake.persistence.db import DbPersistence\nfrom snakemake.settings",
        "import FilePersistence\nfrom snakemake.settings",
    ),
    (
        "snakemake",
        "workflow.py",
        "                persistence = DbPersistence\n",
        "                from snakemake.persistence.db import DbPersistence\n\n"
        "                persistence = DbPersistence\n",
    ),
    (
        "snakemake",
        "report/__init__.py",
        f"from yte import process_yaml\n\n{DOCUTILS}from docutils.core import publish_file, publish_parts\n",
        "import functools\nfrom yte import process_yaml\n\n",
    ),
    ("snakemake", "report/__init__.py", CAPTIONS, CAPTIONS_LATER),
    (
        "snakemake",
        "script/__init__.py",
        "def get_language(source_file, source):\n    import nbformat\n\n    filename",
        "def get_language(source_file, source):\n    filename",
    ),
    (
        "snakemake",
        "script/__init__.py",
        '    if language == "jupyter":\n        nb',
        '    if language == "jupyter":\n        import nbformat\n\n        nb',
    ),
    (
        "snakemake",
        "sourcecache.py",
        "        from smart_open import open\n",
        "        if isinstance(source_file, LocalSourceFile):\n\n"
        "            def open(path, mode, encoding, compression):\n"
        "                return io.open(path, mode, encoding=encoding)\n\n"
        "        else:\n            from smart_open import open\n",
    ),
    (
        "snakemake",
        "sourcecache.py",
        "        uri = parse_uri(self.get_path_or_uri(secret_free=True))\n",
        "        path = self.get_path_or_uri(secret_free=True)\n"
        '        if isinstance(self, LocalSourceFile) and "://" not in path:\n'
        '            return os.path.join("file", unquote(os.path.expanduser(path).lstrip("/")))\n'
        "        uri = parse_uri(path)\n",
    ),
    (
        "yte",
        "value_handler.py",
        NUMPY,
        NUMPY_LOADED,
    ),
    (
        "snakemake",
        "iocontainers.py",
        "        try:\n            import pandas as pd\n        except ModuleNotFoundError:\n"
        "            pd = None  # type: ignore[assignment]\n",
        f"        {LOADED}",
    ),
    (
        "snakemake",
        "iocontainers.py",
        "        try:\n            import numpy as np\n        except ModuleNotFoundError:\n"
        "            np = None  # type: ignore[assignment]\n",
        '        np = __import__("sys").modules.get("numpy")\n',
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
    (
        "snakemake_storage_plugin_gcs",
        "__init__.py",
        "import google.cloud.exceptions\nfrom google.cloud import storage\n"
        "from google.cloud.storage import transfer_manager\nfrom google.api_core import retry\n"
        "from google_crc32c import Checksum\n",
        f"from google_crc32c import Checksum\n\n\n{LATER}{RETRIED}"
        'google = Later("google", "google.cloud.exceptions")\nstorage = Later("google.cloud.storage")\n'
        'transfer_manager = Later("google.cloud.storage.transfer_manager")\nretry = Retried("google.api_core.retry")\n',
    ),
]

MENDS += [
    (
        "snakemake_interface_common",
        "plugin_registry/__init__.py",
        "import types\nimport pkgutil\nimport importlib\n",
        "import sys\nimport types\nimport importlib\nfrom pathlib import Path\n",
    ),
    (
        "snakemake_interface_common",
        "plugin_registry/__init__.py",
        "        for moduleinfo in pkgutil.iter_modules():\n"
        "            if not moduleinfo.ispkg or not moduleinfo.name.startswith(\n"
        "                self.module_prefix\n            ):\n                continue\n"
        "            module = importlib.import_module(moduleinfo.name)\n"
        "            self.register_plugin(moduleinfo.name, module)\n",
        PLUGINS,
    ),
    ("snakemake", "parser.py", "def parse(\n    path,\n", PARSE),
    ("snakemake", "cli.py", "from collections import defaultdict\nimport os\n", FEW_COLLECTIONS),
    (
        "snakemake",
        "report/html_reporter/__init__.py",
        "ZipFile\n\nfrom jinja2 import Environment, PackageLoader\nfrom snakemake.report.common",
        "ZipFile\n\nfrom snakemake.report.common",
    ),
    (
        "snakemake",
        "report/html_reporter/__init__.py",
        "        self.env = Environment(",
        "        from jinja2 import Environment, PackageLoader\n\n        self.env = Environment(",
    ),
    (
        "snakemake",
        "parser.py",
        "import sys\nimport textwrap\nimport tokenize\nfrom typing",
        "import contextlib\nimport hashlib\nimport json\nimport os\nimport sys\nimport textwrap\nimport tokenize\n"
        "from pathlib import Path\nfrom typing",
    ),
    ("snakemake", "parser.py", "from snakemake import common\n", "from snakemake import __version__, common\n"),
    ("snakemake", "__init__.py", "from snakemake.shell import shell\n", SHELL_LATER),
    (
        "snakemake",
        "iocontainers.py",
        "        from snakemake.io import _IOFile, strip_wildcard_constraints\n\n        list",
        "        if plainstr or strip_constraints:\n"
        "            from snakemake.io import _IOFile, strip_wildcard_constraints\n\n        list",
    ),
    (
        "snakemake",
        "script/__init__.py",
        "            from snakemake.logging import logger;\n            from snakemake.iocontainers",
        '            logger = type("Later", (), {{"__getattr__": lambda _, name: getattr('
        '__import__("snakemake.logging").logging.logger, name)}})();\n            from snakemake.iocontainers',
    ),
    (
        "snakemake",
        "scheduling/job_scheduler.py",
        "    def _schedule_reevalutation(self, delay: int) -> None:\n        threading.Timer(\n            delay,\n"
        "            lambda: self._open_jobs.release(),\n        ).start()\n",
        TIMER,
    ),
    ("snakemake", "common/configfile.py", OPENED + UNREAD, NAMED),
    (
        "snakemake",
        "common/configfile.py",
        TOP_LEVEL,
        TOP_LEVEL.replace('"Config file must', 'f"Config file {configpath} must'),
    ),
]

if __name__ == "__main__":
    for package, file, wrong, right in MENDS:
        if found := importlib.util.find_spec(package):
            mend(Path(found.origin).parent, {file: (wrong, right)})
