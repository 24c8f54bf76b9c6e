"""Secrets stay secret, and nothing that comes as data is run."""

import base64
import gzip
import json
import os
import pickle
import re
import subprocess
import sys
import zipfile

import pytest
import warm
from conftest import CANARIES, ROOT, write_tokenizer_to
from tpulm.config import checks
from tpulm.core import foreign_folders
from tpulm.core.arrays import load_arrays
from tpulm.core.errors import UserError
from tpulm.core.foreign_folders import check_folder, check_preset
from tpulm.corpus.files import load_hub, read_files
from tpulm.corpus.rows import Form
from tpulm.records.tfrecord import CRC, LENGTH, masked_crc, scan

SECRETS = [*CANARIES.values(), "canary0004canary0004canary0004"]
FORMS = [form for text in SECRETS for form in (text.encode(), base64.b64encode(text.encode())[:-4])]


def leaks(folder):
    """Return the files under a folder that hold a secret, packed ones too."""
    found = []
    for path in folder.rglob("*"):
        if not path.is_file() or path.is_symlink():
            continue
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content += gzip.decompress(content)
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                content += b"".join(archive.read(name) for name in archive.namelist())
        if any(form in content for form in FORMS):
            found.append(str(path.relative_to(folder)))
    return found


def test_secrets_are_nowhere_in_a_run_with_its_report(trained, tmp_path):
    assert (trained / "report.zip").is_file() and (trained / ".snakemake/metadata").is_dir()
    assert leaks(trained.folder) == []
    (tmp_path / "a.gz").write_bytes(gzip.compress(SECRETS[0].encode()))
    assert leaks(tmp_path) == ["a.gz"]  # the search finds what there is


FAILING = """
import os, sys
sys.path.insert(0, sys.argv[1])
from tpulm.core.job import job
with job("job.log", "test") as say:
    os.write(2, f"a library prints {os.environ['KAGGLE_KEY']}\\n".encode())
    say(f"progress with {os.environ['WANDB_API_KEY']}")
    raise RuntimeError("headers: " + os.environ["HF_TOKEN"] + " canary0004canary0004canary0004")
"""


def test_a_config_with_a_secret(monkeypatch):
    checks.check_strings("", {"title": "A model", "mlm": {"runs": ["gs://a/b", 5, None]}})
    token = "hf_" + 17 * "aB"
    with pytest.raises(UserError, match="^title has a token, ") as error:
        checks.check_strings("", {"title": f"Trained with {token}"})
    assert token not in str(error.value)
    monkeypatch.setenv("OF_A_COMPANY_PASSWORD", "canary-" + 3 * "0005")
    with pytest.raises(UserError, match=r"^prompts\.generate\[1\] has a secret of the environment"):
        checks.check_strings("", {"prompts": {"generate": ["a", "canary-" + 3 * "0005"]}})


def test_a_traceback_shows_no_secret(tmp_path, secrets):
    command = [sys.executable, "-c", FAILING, str(ROOT / "scripts")]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | secrets, capture_output=True, text=True)
    assert done.returncode == 1
    assert "RuntimeError: headers: [secret] [secret]" in done.stderr
    assert "a library prints [secret]" in (tmp_path / "job.log").read_text()
    assert not [text for text in SECRETS if text in done.stderr + done.stdout]
    assert leaks(tmp_path) == []


class Evil:
    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return (open, (self.mark, "w"))


@pytest.fixture
def planted(tmp_path):
    """A pickle and a module that make the file `mark` when they are loaded; the test fails where it then exists."""
    mark = tmp_path / "mark"
    module = f"open({str(mark)!r}, 'w')\n"
    data = pickle.dumps(Evil(mark))
    pickle.loads(data)
    assert mark.exists()  # they do work
    mark.unlink()
    yield data, module
    assert not mark.exists(), "code from data was run"


def write_files(folder, **contents):
    """Write files; `__` in a name stands for the dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.csv", "a.txt", "a.json", "a.txt.gz"])
def test_a_text_file_that_is_a_pickle(tmp_path, planted, name):
    (tmp_path / name).write_bytes(planted[0])
    with pytest.raises(UserError, match=re.escape(str(tmp_path / name))):
        list(read_files([str(tmp_path / name)], "line", Form("corpus", {"column": "text"})))


def test_a_dataset_that_is_code(tmp_path, planted):
    folder = write_files(tmp_path / "evil", evil__py=planted[1])
    recipe = {"dataset": str(folder), "splits": {"train": "train"}, "column": "text"}
    with pytest.raises(UserError, match=str(folder)):
        load_hub("corpus", recipe, Form("corpus", recipe))


def test_a_tokenizer_with_code_of_its_own(tmp_path, planted):
    config = json.dumps({"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": 2 * ["evil.Evil"]}})
    folder = write_files(tmp_path / "evil", evil__py=planted[1], tokenizer_config__json=config, vocab__json="{}")
    with pytest.raises(UserError, match=f"^tokenizer.pretrained is {folder}, .*tokenizer_config.json .*auto_map"):
        write_tokenizer_to(tmp_path / "out", folder)


GEMMA = {"model_type": "gemma", "architectures": ["GemmaForCausalLM"], "hidden_size": 8}
LAMBDA = {"module": "keras.layers", "class_name": "Lambda", "config": {}, "registered_name": None}
FOREIGN = {"module": "os", "class_name": "system", "config": {}, "registered_name": "x>y"}


def with_inner(config):
    """Return the files of a preset whose config has this one within."""
    return {"config__json": json.dumps({"registered_name": "a", "config": config})}


PRESETS = [
    ({"config__json": json.dumps(GEMMA), "pytorch_model__bin": "PICKLE"}, "pytorch_model.bin, a pickle"),
    (
        {"config__json": json.dumps(GEMMA | {"auto_map": {"AutoModel": "evil.Model"}}), "evil__py": "MODULE"},
        "config.json .*auto_map",
    ),
    ({"config__json": json.dumps(LAMBDA), "model__weights__h5": b"\x89HDF\r\n\x1a\n"}, "keras.layers.Lambda"),
    (with_inner({"inner": FOREIGN}), "config.json .*os.system"),
    (with_inner({"inner": FOREIGN | {"module": "builtins"}}), "config.json .*builtins.system"),
    (with_inner([FOREIGN | {"module": "keras.ops"}]), "config.json .*keras.ops.system"),
    ({"config__json": "{"}, "config.json is not JSON"),
    ({"config__json": "{}", "vocabulary__spm": b"\x0a\x05abcde"}, "vocabulary.spm is no vocabulary"),
    ({"config__json": '{"a": ' + 990 * "[" + json.dumps(FOREIGN) + 990 * "]" + "}"}, "(os.system|nested too deeply)"),
    ({"model__safetensors__index__json": "[1]"}, "model.safetensors.index.json has no weight_map"),
    ({"model__safetensors__index__json": '{"weight_map": {"a": "../b"}}'}, 'model.safetensors.index.json .*"../b"'),
    ({"model__weights__json": '{"weight_map": {"a": ["b", "../c"]}}'}, 'model.weights.json .*"../c"'),
    ({"config__json": "{}", "model__weights__h5": b"\x89HDF\r\n\x1a\n"}, "model.weights.h5 cannot be read"),
    (with_inner({}) | {"model__weights__h5": "PICKLE"}, "model.weights.h5 is not an HDF5 file"),
]


@pytest.mark.parametrize(("contents", "said"), PRESETS)
def test_presets_that_would_run_code(tmp_path, planted, contents, said):
    stand_for = {"PICKLE": planted[0], "MODULE": planted[1]}
    folder = write_files(tmp_path / "evil", **{name: stand_for.get(text, text) for name, text in contents.items()})
    with pytest.raises(UserError, match=f"^base.x.preset is evil, .*{said}"):
        check_preset(folder, "base.x.preset is evil")


@pytest.mark.parametrize("kind", ["external link", "soft link", "external storage", "virtual"])
def test_weights_that_are_elsewhere(tmp_path, kind):
    import h5py

    (tmp_path / "values").write_bytes(bytes(16))
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["a"] = [1.0, 2.0]
    folder = write_files(tmp_path / "evil", config__json="{}")
    with h5py.File(folder / "model.weights.h5", "w") as file:
        layers = file.create_group("layers")
        layers["b"] = [1.0]
        if kind == "external link":
            layers["a"] = h5py.ExternalLink("../other.h5", "a")
        elif kind == "soft link":
            layers["a"] = h5py.SoftLink("/layers/b")
        elif kind == "external storage":
            layers.create_dataset("a", (2,), "f8", external=[("../values", 0, 16)])
        else:
            layout = h5py.VirtualLayout((2,), "f8")
            layout[:] = h5py.VirtualSource("../other.h5", "a", (2,))
            layers.create_virtual_dataset("a", layout)
    with pytest.raises(UserError, match="^base.x.preset is evil, where a of model.weights.h5 is "):
        check_preset(folder, "base.x.preset is evil")


def test_json_that_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign_folders, "LARGEST_JSON", 2**20)
    folder = write_files(tmp_path / "evil", config__json="{}", tokenizer__json=" " * 2**20 + "{}")
    with pytest.raises(UserError, match="^x is evil, where tokenizer.json is larger than 1 MiB"):
        check_folder(folder, "x is evil")


def test_links_leave_no_folder(tmp_path):
    (tmp_path / "outside.json").write_text("{}")
    folder = write_files(tmp_path / "evil", config__json="{}")
    (folder / "more").mkdir()
    (folder / "more/inside.json").symlink_to("../config.json")
    check_folder(folder, "x is evil")
    (folder / "more/a.json").symlink_to("../../outside.json")
    with pytest.raises(UserError, match=f"^x is evil, where more/a.json is a link to {tmp_path}/outside.json;"):
        check_folder(folder, "x is evil")
    (folder / "more/a.json").unlink()
    os.mkfifo(folder / "more/a.json")
    with pytest.raises(UserError, match="^x is evil, where more/a.json is neither a file nor a folder"):
        check_folder(folder, "x is evil")

    # As huggingface_hub keeps files.
    snapshot = write_files(tmp_path / "hub/models--a--b/snapshots/0123", config__json="{}")
    blob = write_files(tmp_path / "hub/models--a--b/blobs", abc="{}") / "abc"
    (snapshot / "model.safetensors").symlink_to(f"../../blobs/{blob.name}")
    check_folder(snapshot, "x is a snapshot")


# A script as its rule runs it, without Snakemake.
BY_HAND = """
import runpy, sys
from types import SimpleNamespace as Of
sys.path.insert(0, "scripts")
runpy.run_path(sys.argv[1], {"snakemake": eval(sys.argv[2])})
"""


def test_a_preset_with_a_pickle_and_one_that_no_library_knows_are_not_fetched(tmp_path, planted):
    write_files(tmp_path / "evil", config__json=json.dumps(GEMMA), pytorch_model__bin=planted[0], evil__py=planted[1])
    empty = (2).to_bytes(8, "little") + b"{}"
    write_files(tmp_path / "odd", config__json=json.dumps({"model_type": "none"}), model__safetensors=empty)
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    for name, named in (("evil", r"pytorch_model\.bin"), ("odd", "cannot be opened")):
        given = f"""Of(
            params=Of(recipe={{"preset": "./{name}", "revision": None}}), wildcards=Of(run="{name}"),
            output=Of(folder="out", fingerprint="out.json"), log=["{name}.log"],
        )"""
        said = warm.run("jax", BY_HAND, "scripts/base/fetch_base.py", given, folder=tmp_path, code=1).stderr
        assert re.search(rf"error: base\.{name}\.preset is ./{name}, .*{named}", said) and "Traceback" not in said
    assert not list(tmp_path.glob("*out*"))


def test_arrays_that_are_a_pickle(tmp_path, planted):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(planted[0])
    with pytest.raises(UserError, match=str(path)):
        load_arrays(str(path))


def test_a_model_with_code_of_its_own_is_an_unknown_key(tmp_path, planted):
    from tpulm.models.transformers_config import model_config

    manifest = {"special_ids": {"cls": 0, "sep": 1, "pad": 3}, "vocab_size": 10, "sequence_length": 8}
    with pytest.raises(UserError, match='mlm.runs.x.model .*"auto_map"'):
        model_config({"architecture": "bert", "auto_map": {"AutoModel": "evil.Model"}}, manifest, "mlm.runs.x.model")


# As rules/common.smk has it, for long chains of checkpoints. Threads read at the same time.
DEEP = """
import sys
from concurrent.futures import ThreadPoolExecutor
from tpulm.core.errors import UserError
from tpulm.core.files import read_json
sys.setrecursionlimit(100_000)
with ThreadPoolExecutor(4) as pool:
    list(pool.map(read_json, 50 * sys.argv[1:3]))
print(sys.getrecursionlimit())
for path in sys.argv[3:]:
    try:
        read_json(path)
    except UserError as error:
        print(error)
"""


@pytest.mark.unit
def test_json_that_is_nested_without_end_breaks_no_stack(tmp_path):
    deep, plain = [tmp_path / f"{number}.json" for number in range(4)], [tmp_path / "a.json", tmp_path / "b.json"]
    texts = ["[" * 90_000, "[" * 90_000 + "]" * 90_000, '["]]", ' * 600 + "1" + "]" * 600, "[" * 600 + '"\\"' * 90_000]
    texts += [json.dumps([{"text": "[{" * 1000 + '"\\', "n": [n]} for n in range(100)]), json.dumps("[" * 600)]
    for path, text in zip(deep + plain, texts, strict=True):
        path.write_text(text)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
    command = [sys.executable, "-c", DEEP, *plain, *deep]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    limit, *messages = done.stdout.splitlines()
    assert limit == "100000" and len(messages) == len(deep)
    assert all(said.startswith(f"{path} is nested too deeply") for said, path in zip(messages, deep, strict=True))


@pytest.mark.unit
@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**63 - 20, 30 * 2**30])
def test_no_memory_is_taken_for_a_record_that_is_not_there(tmp_path, length):
    head = LENGTH.pack(length)
    (tmp_path / "x.tfrecord").write_bytes(head + CRC.pack(masked_crc(head)) + bytes(100))
    with pytest.raises(UserError, match="x.tfrecord is corrupt .*: the file ends within a record"):
        list(scan(tmp_path / "x.tfrecord"))


SETTINGS = {"JAX_ENABLE_X64": "1", "JAX_DEFAULT_MATMUL_PRECISION": "bfloat16", "KERAS_BACKEND": "tensorflow"}
STARTED = """
import os
from tpulm.training import runtime
runtime.start(1)
import jax, keras
print(jax.numpy.arange(2.0).dtype, jax.config.jax_default_matmul_precision, keras.backend.backend())
assert "--xla_cpu_enable_fast_math=false" in os.environ["XLA_FLAGS"]
"""


def test_settings_from_outside_change_no_number(tmp_path):
    given = SETTINGS | {"XLA_FLAGS": "--xla_cpu_enable_fast_math=false", "PYTHONPATH": str(ROOT / "scripts")}
    command = [sys.executable, "-c", STARTED]
    done = subprocess.run(command, env=os.environ | given, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["float32", "None", "jax"]
