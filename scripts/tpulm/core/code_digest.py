"""The code that a job computes with: its script, the modules that this imports, the packages that can change a number.

A digest is of a syntax tree, without what cannot change a number: comments, docstrings, annotations, messages of
errors. It is the same under every Python, whose own `ast.dump` is not.
"""

import ast
import atexit
import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tpulm.core.files import write_text

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS, LOCKS = ROOT / "scripts", ROOT / "envs"
# Syntax trees take a second to read, which one start of Snakemake does for the following ones.
CACHE, READER = Path(".snakemake") / "code.json", Path(__file__).read_bytes()
# Modules that no data and no model depend on: with stubs in their place, each stage writes the same bytes (a test). The
# rooms that tell about jobs do compute with them.
TELLING = ("tpulm/release/", "tpulm/report/")
UNCOUNTED = frozenset(
    f"tpulm/{module}.py"
    for module in (
        "core/code_digest", "core/errors", "core/experiments", "core/folder_lock", "core/job", "core/job_record",
        "core/ledger", "core/live_metrics", "core/secrets", "training/profiling",
    )
)  # fmt: skip
# Packages whose version can change a number: by their module, their distribution.
SOFTWARE = {
    "jax": "jax", "jaxlib": "jaxlib", "libtpu": "libtpu", "keras": "keras", "keras_hub": "keras-hub",
    "tensorflow": "tensorflow", "tf_keras": "tf-keras", "transformers": "transformers", "tokenizers": "tokenizers",
    "sentencepiece": "sentencepiece", "numpy": "numpy", "ml_dtypes": "ml-dtypes", "scipy": "scipy",
    "sklearn": "scikit-learn", "pandas": "pandas", "pyarrow": "pyarrow", "datasets": "datasets",
    "safetensors": "safetensors", "gguf": "gguf", "jinja2": "jinja2", "vl_convert": "vl-convert-python",
    "lm_eval": "lm-eval", "evaluate": "evaluate", "sacrebleu": "sacrebleu",
}  # fmt: skip
# Packages that compute for another one.
BELOW = {
    "jax": ("jaxlib", "libtpu", "ml_dtypes"), "keras_hub": ("keras",), "transformers": ("tokenizers",),
    "lm_eval": ("evaluate", "sacrebleu", "sklearn", "scipy"),
}  # fmt: skip
PINNED = re.compile(r"^([\w.-]+)(?:\[[^]]*\])?==([^\s;\\]+)", re.MULTILINE)


# The param of a job as Snakemake's metadata has it: script, environment and a digest.
PARAM = re.compile(r"'(?P<job>scripts/\S+\.py [\w-]+) [0-9a-f]{16}'")


class Code(NamedTuple):
    """The code of a job.

    script       path of its script
    environment  name of its environment, whose lock is envs/NAME.txt
    modules      digests of the script and of the modules that it imports, by their paths
    packages     versions that the lock pins, by distribution
    """

    script: str
    environment: str
    modules: dict[str, str]
    packages: dict[str, str]

    def param(self) -> str:
        """Return the text "SCRIPT ENVIRONMENT DIGEST", with a digest of all the code: what Snakemake compares."""
        everything = json.dumps([self.modules, self.packages], sort_keys=True)
        return f"{self.script} {self.environment} {hashlib.sha256(everything.encode()).hexdigest()[:16]}"


def code_digest(script: str, environment: str | Callable[[Any], str]) -> Callable[[Any], str]:
    """Return a function of the wildcards that returns `Code.param` of a script, as a rule's param `code`.

    It is a function so that code is only read for rules that have jobs; most have none.

    script       its path below scripts/, without the ending, such as mlm/train_mlm_jax
    environment  by its name, or a function of the wildcards that returns it: the backend of a job that has either
    """
    name_of = environment if callable(environment) else lambda wildcards: environment
    return lambda wildcards: code_of(f"scripts/{script}.py", name_of(wildcards)).param()


@cache
def code_of(script: str, environment: str) -> Code:
    """Return the code of a script.

    script       its path, such as scripts/mlm/train_mlm_jax.py
    environment  by its name; the branches of a script for another backend do not count, see `Computing`
    """
    file = script.removeprefix("scripts/")
    sources = {
        name: read_source(name, environment if name == file else "") for name in imported_files(file, environment)
    }
    names = {name.partition(".")[0] for source in sources.values() for name in source.imports}
    names |= {below for name in names for below in BELOW.get(name, ())}
    used = {SOFTWARE[name] for name in names if name in SOFTWARE}
    packages = {name: version for name, version in pinned(environment).items() if name in used}
    return Code(script, environment, {f"scripts/{file}": source.digest for file, source in sources.items()}, packages)


def code_of_param(param: str) -> Code:
    """Return the code, as it is now, of the job that has this param."""
    script, environment, _ = param.split()
    return code_of(script, environment)


@cache
def pinned(environment: str) -> dict[str, str]:
    """Return the versions that the lock of an environment pins, by distribution."""
    return dict(PINNED.findall((LOCKS / f"{environment}.txt").read_text(encoding="utf-8")))


def imported_files(script: str, environment: str = "") -> list[str]:
    """Return the paths of a script and of the modules that count for an environment, or for all; sorted."""
    files: set[str] = set()
    queue = [script]
    while queue:
        file = queue.pop()
        if file not in files:
            files.add(file)
            queue += imported_by(file, environment if file == script else "")
    return sorted(files)


@cache
def imported_by(file: str, backend: str) -> list[str]:
    """Return the counted modules that a file itself imports, paths below scripts/."""
    names = (name.replace(".", "/") + ".py" for name in read_source(file, backend).imports)
    counted = (name for name in names if name not in UNCOUNTED or file.startswith(TELLING))
    return [name for name in counted if (SCRIPTS / name).is_file()]


class Source(NamedTuple):
    """What a file of Python computes, as a digest, and the dotted names of what it imports, members of modules too."""

    digest: str
    imports: list[str]


@cache
def cached_sources() -> dict[str, list]:
    """Return [digest, imports] of files from CACHE, where the process writes new ones at its end."""
    cached: object = None
    with contextlib.suppress(OSError, ValueError):
        cached = json.loads(CACHE.read_text(encoding="utf-8"))
    sources = cached if isinstance(cached, dict) else {}
    atexit.register(write_cache, CACHE.absolute(), sources, len(sources))
    return sources


def write_cache(path: Path, sources: dict[str, list], before: int) -> None:
    """Write the cache if it has more than before; without it, the next start reads the files again."""
    if len(sources) > before:
        with contextlib.suppress(OSError):
            write_text(path, json.dumps(sources))


@cache
def read_source(file: str, backend: str) -> Source:
    """Return a file as it counts for a backend; "" keeps the branches of all, as in modules."""
    content, cached = (SCRIPTS / file).read_bytes(), cached_sources()
    key = hashlib.sha256(b" ".join([READER, backend.encode(), content])).hexdigest()
    if key not in cached:
        tree = Computing(backend).visit(ast.parse(content, filename=str(SCRIPTS / file)))
        digest = hashlib.sha256(serialized(tree).encode()).hexdigest()[:16]
        cached[key] = [digest, sorted({*imported_names(tree)})]
    return Source(*cached[key])


def imported_names(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names that the import statements of a tree name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)
            yield str(node.module)


def backend_of_branch(node: ast.AST) -> str | None:
    """Return the backend that `if recipe["backend"] == "jax":` names; None for another statement."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Compare):
        test = node.test
        if isinstance(test.ops[0], ast.Eq) and ast.unparse(test.left) == "recipe['backend']":
            return getattr(test.comparators[0], "value", None)
    return None


class Computing(ast.NodeTransformer):
    """Drops what cannot change a number, and the branches of `backend_of_branch` that another backend takes."""

    def __init__(self, backend: str):
        """Take the name of the backend, or "" to keep all branches."""
        self.backend = backend

    def drop_strings(self, node: ast.AST) -> ast.AST:
        """Drop strings that are statements, such as docstrings."""
        node.body = [  # type: ignore[attr-defined]
            line
            for line in node.body  # type: ignore[attr-defined]
            if not (isinstance(line, ast.Expr) and isinstance(getattr(line.value, "value", None), str))
        ]
        return self.generic_visit(node)

    visit_Module = visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = drop_strings

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        """Drop the message of an error; arguments of other exceptions can be more."""
        error = node.exc
        if isinstance(error, ast.Call) and ast.unparse(error.func).endswith("Error"):
            node.exc = error.func
        return self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        """Drop the empty strings that some versions of Python put between the parts of an f-string."""
        node.values = [value for value in node.values if getattr(value, "value", None) != ""]
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.AST]:
        """Drop what only type checkers read, and what another backend runs."""
        self.generic_visit(node)
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return list(node.orelse)
        if self.backend and (branch := backend_of_branch(node)):
            return list(node.body if branch == self.backend else node.orelse)
        return node


# Fields of syntax trees that change no number: types, the message of `assert`, the cause of an error; `ctx` says again
# whether a name is read or written.
IGNORED = {"annotation", "returns", "msg", "cause", "ctx", "type_comment"}


def serialized(node: object) -> str:
    """Return a syntax tree as text, without empty fields, which differ between versions of Python."""
    if isinstance(node, list):
        return f"[{','.join(map(serialized, node))}]"
    if isinstance(node, ast.Constant):
        return f"{type(node.value).__name__} {ascii(node.value)}"
    if not isinstance(node, ast.AST):
        return ascii(node)
    fields = (
        f"{name}={serialized(value)}"
        for name, value in ast.iter_fields(node)
        if name not in IGNORED and value is not None and value != []
    )
    return f"{type(node).__name__}({','.join(fields)})"
