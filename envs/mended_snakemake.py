"""The longer pieces of code of `mend_snakemake`."""

import textwrap

LATER = '''class Later:
    """Modules that are imported when one is first used; attributes are those of the first."""

    def __init__(self, *names):
        self.names = names

    def __getattr__(self, attribute):
        from importlib import import_module

        return getattr([import_module(name) for name in self.names][0], attribute)


'''
RETRIED = '''class Retried(Later):
    """google.api_core.retry, of which a Retry is made when what it decorates is called."""

    def Retry(self, **options):
        from functools import wraps

        def decorate(function):
            @wraps(function)
            def call(*args, **kwargs):
                return self.__getattr__("Retry")(**options)(function)(*args, **kwargs)

            return call

        return decorate


'''
# Metadata of an output: a class of the database, where it is in one; in files, the same fields and methods without it.
FIELDS = """    rule: str | None = None
    input: list[str] | None = Field(default=None, sa_column=Column(JSON))
    log: list[str] | None = Field(default=None, sa_column=Column(JSON))
    shellcmd: str | None = None
    params: list[Any] | None = Field(default=None, sa_column=Column(JSON))
    code: str | None = None
    record_format_version: int = 0
    conda_env: str | None = None
    container_img_url: str | None = None
    software_stack_hash: str | None = None
    job_hash: int | None = None
    starttime: float | None = None
    endtime: float | None = None
    incomplete: bool | None = None
    external_jobid: str | None = None
    input_checksums: dict[str, Any] | None = Field(
        default_factory=dict, sa_column=Column(JSON)
    )

"""
IN_DATABASE = f"class MetadataRecord(SQLModel):\n{FIELDS}"
PLAIN = FIELDS.replace("Field(default=None, sa_column=Column(JSON))", "None")
PLAIN = PLAIN.replace(
    "Field(\n        default_factory=dict, sa_column=Column(JSON)\n    )", "field(default_factory=dict)"
)
IN_FILES = f'''@dataclass
class MetadataRecord:
{PLAIN}    @classmethod
    def model_validate(cls, record):
        """Return the record of a mapping; other fields are left out."""
        return cls(**{{name: record[name] for name in cls.__dataclass_fields__ if name in record}})

    def model_dump(self):
        """Return the fields by name."""
        return dict(vars(self))

'''
# How its report's captions embed images.
CAPTIONS = """class EmbeddedMixin(object):
    \"""
    Replaces the URI of a directive with a base64-encoded version.

    Useful for embedding images/figures in reports.
    \"""

    def run(self):
        \"""
        Image.run() handles most of the
        \"""
        result = Image.run(self)
        reference = directives.uri(self.arguments[0])
        self.options["uri"] = data_uri_from_file(reference)
        return result


# Create (and register) new image:: and figure:: directives that use a base64
# data URI instead of pointing to a filename.


class EmbeddedImage(Image, EmbeddedMixin):
    pass


directives.register_directive("embeddedimage", EmbeddedImage)


class EmbeddedFigure(Figure, EmbeddedMixin):
    pass


directives.register_directive("embeddedfigure", EmbeddedFigure)
"""
DOCUTILS = """from docutils.parsers.rst.directives.images import Image, Figure
from docutils.parsers.rst import directives
"""
CAPTIONS_LATER = f'''@functools.cache
def register_directives():
    """Register the directives of captions."""
{textwrap.indent(DOCUTILS + chr(10) + CAPTIONS, "    ")}

def publish_parts(*args, **options):
    """Return the parts of a text, made by docutils."""
    from docutils.core import publish_parts

    register_directives()
    return publish_parts(*args, **options)


def publish_file(*args, **options):
    """Return a text, made by docutils."""
    from docutils.core import publish_file

    register_directives()
    return publish_file(*args, **options)
'''
# What it imports NumPy for: no value is of NumPy where nobody has imported it.
NUMPY = """try:
    import numpy as np

    def _handle_numpy_str(value):
        if isinstance(value, np.str_):
            return str(value)
        return value

    def _handle_numpy_array(value):
        if isinstance(value, np.ndarray):
            return value.tolist()
        return value

except ImportError:

    def _handle_numpy_str(value):
        return value

    def _handle_numpy_array(value):
        return value
"""
NUMPY_LOADED = """def _handle_numpy_str(value):
    np = __import__("sys").modules.get("numpy")
    return str(value) if np and isinstance(value, np.str_) else value


def _handle_numpy_array(value):
    np = __import__("sys").modules.get("numpy")
    return value.tolist() if np and isinstance(value, np.ndarray) else value
"""
# Plugins are packages with a prefix.
PLUGINS = """        found = {}
        for folder in map(Path, sys.path):
            if folder.is_dir():
                found |= dict.fromkeys(sorted(folder.glob(f"{self.module_prefix}*/__init__.py")))
        for name in dict.fromkeys(path.parent.name for path in found):
            self.register_plugin(name, importlib.import_module(name))
"""
# The name `shell` of the package is that of a module, too, which the first import of it would put in the place.
SHELL_LATER = """class Package(type(sys)):
    @property
    def shell(self):
        from snakemake.shell import shell

        return shell

    @shell.setter
    def shell(self, module):
        pass


sys.modules[__name__].__class__ = Package
"""
# Whether it is due is set before the semaphore is released: who is woken by it can start the next one.
TIMER = """    _reevaluation_due = False

    def _schedule_reevalutation(self, delay: int) -> None:
        def reevaluate():
            self._reevaluation_due = False
            self._open_jobs.release()

        if not self._reevaluation_due:
            self._reevaluation_due = True
            timer = threading.Timer(delay, reevaluate)
            timer.daemon = True
            timer.start()
"""
# What a Snakefile is compiled to follows from its text, and is kept as Python keeps bytecode.
PARSE = '''def parse(
    path,
    workflow: "workflow.Workflow",
    linemap: Dict[int, int],
    overwrite_shellcmd=None,
    rulecount=0,
):
    """Return what `parse_anew` does; from .snakemake/parsed, where the same text was parsed before."""
    name = path.get_path_or_uri(secret_free=True)
    with workflow.sourcecache.open(path) as file:
        asked = [__version__, sys.version, name, overwrite_shellcmd, rulecount, file.read()]
    kept = Path(".snakemake", "parsed", hashlib.sha256(os.fsencode(name)).hexdigest())
    try:
        before, code, lines, count = json.loads(kept.read_text("utf-8"))
        if before == asked:
            linemap |= lines
            return code, count
    except (OSError, ValueError, TypeError):  # there is none, or it is damaged
        pass
    code, count = parse_anew(path, workflow, linemap, overwrite_shellcmd, rulecount)
    partial = kept.with_name(f"{kept.name}.{os.getpid()}")
    with contextlib.suppress(OSError):  # of a folder that cannot be written
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps([asked, code, list(linemap.items()), count]), "utf-8")
        os.replace(partial, kept)
    return code, count


def parse_anew(
    path,
'''
# Objects that are made before garbage is looked for: of the youngest generation; times that, of the others.
FEW_COLLECTIONS = """from collections import defaultdict
import gc

gc.set_threshold(100_000, 20, 20)
import os
"""
# What it says of a config file that it cannot read.
UNREAD = """        with obj as f:
            try:
                return json.load(f, object_pairs_hook=collections.OrderedDict)
            except ValueError:
                f.seek(0)  # try again
            try:
                import yte

                return yte.process_yaml(f, require_use_yte=True)
            except yaml.YAMLError:
                raise WorkflowError(
                    f"{filetype} file is not valid JSON or YAML. "
                    "In case of YAML, make sure to not mix "
                    "whitespace and tab indentation."
                )
    except FileNotFoundError:
        raise WorkflowError(f"{filetype} file {configpath_or_obj} not found.")
"""
OPENED = """    if isinstance(configpath_or_obj, str) or isinstance(configpath_or_obj, Path):
        obj = open(configpath_or_obj, encoding="utf-8")
    else:
        obj = configpath_or_obj

    try:
"""
NAMED = """    name = getattr(configpath_or_obj, "name", configpath_or_obj)
    try:
        if isinstance(configpath_or_obj, str) or isinstance(configpath_or_obj, Path):
            name = configpath_or_obj
            obj = open(configpath_or_obj, encoding="utf-8")
        else:
            obj = configpath_or_obj
        with obj as f:
            text = f.read()
    except UnicodeDecodeError as error:
        raise WorkflowError(f"{filetype} file {name} is not UTF-8 text: {error}.") from None
    except OSError as error:
        advice = " All words after --configfile, up to the next option, are config files: put targets before it."
        raise WorkflowError(
            f"{filetype} file {name} cannot be read: {error.strerror or error}."
            + (advice if filetype == "Config" and isinstance(error, FileNotFoundError) else "")
        ) from None
    try:
        return json.loads(text, object_pairs_hook=collections.OrderedDict)
    except ValueError:
        pass
    try:
        import yte

        return yte.process_yaml(text, require_use_yte=True)
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split()).replace('in "<unicode string>", ', "in ")
        raise WorkflowError(f"{filetype} file {name} is not valid JSON or YAML: {problem}") from None
"""
TOP_LEVEL = """            "Config file must be given as JSON or YAML with keys at top level."
"""
