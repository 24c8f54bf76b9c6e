"""Show the report in a browser while the workflow runs, from the results so far.

    python tools/watch.py
    python tools/watch.py -d experiments/sums --port 8765

Without --configfile, the page is of config.yaml. The tool prints an address with a secret token, for this machine only,
and ends with the workflow, or with Ctrl-C. It takes no lock, and nothing can be written through it. From another
machine: ssh -L PORT:127.0.0.1:PORT HOST.
"""

import argparse
import contextlib
import json
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

try:
    from tpulm.config.outline import Outline
    from tpulm.config.reading import read_config
    from tpulm.config.report import page_recipe
    from tpulm.core import folder_lock
    from tpulm.core.errors import UserError
    from tpulm.core.experiments import CONFIG, add_directory, enter
    from tpulm.core.ledger import jobs_of
    from tpulm.core.local_server import Answer, Respond, serve
    from tpulm.report.jobs import account
    from tpulm.report.page import page, sections
    from tpulm.report.sources import Sources
    from tpulm.specs.artifacts import resolved
except ModuleNotFoundError as error:
    sys.exit(f"error: this Python has no {error.name}; activate the environment: `. .venv/bin/activate`.")

TEMPLATES = ROOT / "report" / "page"
# Files below results/ that the page tells of. The history has no entry of the run that it watches.
TOLD = (
    "corpus.json", "metrics.json", "pieces.json", "manifest.json", "history.csv", "timings.csv", "state.json",
    "fill_mask.json", "generations.json", "partitioning.json", "runs.csv", "scores.json",
    "responses.json", "published.json",
)  # fmt: skip
PLANS = "plan"  # the folder of which it tells every JSON file
# A rule, or one that is made of another one by another name.
RULE = re.compile(r"^ *(?:rule|use rule \w+ as) (\w+)(?: with)?:", re.M)
SECONDS = 1.0  # between two looks at the files, at least; ten times what a look takes, where that is more
TRIES = 5  # to read files that are being replaced
LAST = 6.0  # seconds for the page to ask once more after the end


class Look:
    """What the page says at this moment; made anew when it is asked for, and at most every SECONDS."""

    def __init__(self, recipe: dict[str, Any], results: Path):
        """Take the page's recipe, and the folder that the files are in."""
        self.recipe, self.results = recipe, results
        self.lock = threading.Lock()
        self.made, self.took, self.found = 0.0, 0.0, []
        self.known: dict[str, tuple[tuple[int, int], Any]] = {}  # what files said, by their dates and sizes

    def files(self) -> dict[str, Path]:
        """Return the files that are there, by the names that the page gives them."""
        found = {}
        for path in self.results.rglob("*"):
            if path.name in TOLD or (path.suffix == ".json" and path.relative_to(self.results).parts[0] == PLANS):
                found[path.relative_to(self.results).as_posix()] = path
        logs = {run["log"]: Path(run["log"]) for run in self.recipe["runs"]}
        return found | {name: path for name, path in logs.items() if path.is_file()}

    def sources(self) -> Sources:
        """Return the files; what has not changed is not read again."""
        files, stats = {}, {}
        for name, path in self.files().items():
            with contextlib.suppress(FileNotFoundError):  # Snakemake deletes what a job is about to make again
                stat = path.stat()
                files[name], stats[name] = path, (stat.st_mtime_ns, stat.st_size)
        since = folder_lock.LOCK.stat().st_mtime if folder_lock.at_work() else None
        sources = Sources(files, linked=False, since=since)
        sources.read = {name: said for name, (stat, said) in self.known.items() if stats.get(name) == stat}
        logs = {run["log"] for run in self.recipe["runs"]}
        given = [str(path) for name, path in files.items() if name not in logs]
        made = account(given, self.recipe, jobs_of(Path()))
        self.stats = stats
        sources.read["jobs.json"] = made
        return sources

    def sections(self) -> list[dict[str, Any]]:
        """Return the sections of the page; those of before, where a file is being replaced right now."""
        with self.lock:
            if time.monotonic() - self.made > max(SECONDS, 10 * self.took):
                began = time.monotonic()
                with contextlib.suppress(OSError, ValueError):
                    sources = self.sources()
                    self.found = sections(self.recipe, sources, TEMPLATES)
                    self.known = {
                        name: (stat, sources.read[name]) for name, stat in self.stats.items() if name in sources.read
                    }
                self.made = time.monotonic()
                self.took = self.made - began
            return self.found

    def page(self, live: str) -> str:
        """Return the whole page, which asks for changes at the path `live`.

        Raises OSError, ValueError where files are being replaced for longer than TRIES looks.
        """
        for left in reversed(range(TRIES)):
            try:
                with self.lock:
                    return page(self.recipe, self.sources(), TEMPLATES, live)
            except (OSError, ValueError):
                if not left:
                    raise
                time.sleep(SECONDS)
        raise AssertionError


def respond(look: Look, ended: threading.Event, told: threading.Event) -> Respond:
    """Return what answers: the page, changed sections at /sections, and nothing else.

    ended  whether the workflow has; told is set when a page was told so
    """

    def answer(path: str, query: str, sent: bytes | None) -> Answer | None:
        if sent is not None or path not in ("", "sections"):
            return None
        if path == "":
            try:
                return Answer("text/html; charset=utf-8", [look.page("sections")])
            except (OSError, ValueError):
                return Answer(status=503)
        return Answer("application/json", sections(dict(parse_qsl(query)), ended.is_set()))

    def sections(versions: Mapping[str, str], over: bool) -> Iterator[str]:
        changed = [section for section in look.sections() if versions.get(section["id"]) != section["version"]]
        yield json.dumps({"sections": changed, "ended": over})
        if over:
            told.set()

    return answer


def stages_of_rules() -> dict[str, str]:
    """Return the stage of each rule, the name of its file, in the order in which the Snakefile includes them."""
    files = re.findall(r'include: "(rules/\w+\.smk)"', (ROOT / "Snakefile").read_text(encoding="utf-8"))
    return {rule: Path(file).stem for file in files for rule in RULE.findall((ROOT / file).read_text(encoding="utf-8"))}


def main() -> None:
    """Serve the page until the workflow ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configfile", type=Path, nargs="+", help="as for snakemake")
    parser.add_argument("--results", type=Path, help="where the artifacts are; default: the results of the config")
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1; default: a free port")
    add_directory(parser)
    asked = parser.parse_args()
    try:
        enter(asked)
        files = asked.configfile or [CONFIG]
        config = read_config(files, {})
        results = asked.results or Path("results")
        look = Look(page_recipe(Outline(config), stages_of_rules(), files, resolved), results)
        ended, told = threading.Event(), threading.Event()
        server, address = serve(respond(look, ended, told), asked.port)
    except UserError as error:
        sys.exit(f"error: {error}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(address, flush=True)
    print(f"The config: {' '.join(map(str, files))}; the results: {results}/", flush=True)
    working = folder_lock.at_work()
    if not working:
        why = "No snakemake is running on it" if working is False else "The last snakemake on it ran on another host"
        print(f"{why}; the page shows the results so far, until Ctrl-C or the end of the next snakemake.", flush=True)
    try:
        while not folder_lock.at_work():
            time.sleep(SECONDS)
        while folder_lock.at_work():
            time.sleep(SECONDS)
        ended.set()
        told.wait(LAST)
        print(f"The workflow has ended; if it succeeded, the page is {results}/report.html.", flush=True)
    except KeyboardInterrupt:
        pass
    server.shutdown()


if __name__ == "__main__":
    main()
