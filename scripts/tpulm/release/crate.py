"""Describe the provenance of a run as an RO-Crate of the profile Provenance Run Crate 0.5.

https://www.researchobject.org/workflow-run-crate/profiles/provenance_run_crate: the Snakefile is the workflow, the
script of a rule a tool, a rule a step. The run of the workflow and of each tool is an action with files as object and
result. A file outside the archive is named by its hash (RFC 6920).
"""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from rocrate.model.contextentity import ContextEntity
from rocrate.model.data_entity import DataEntity
from rocrate.model.file import File
from rocrate.rocrate import ROCrate

PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/ro/wfrun/provenance/0.5": "Provenance Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
WORKFLOW = "source/Snakefile"
DONE, FAILED = "http://schema.org/CompletedActionStatus", "http://schema.org/FailedActionStatus"
FORMATS = {
    ".json": "application/json", ".csv": "text/csv", ".md": "text/markdown", ".html": "text/html",
    ".svg": "image/svg+xml", ".parquet": "application/vnd.apache.parquet", ".py": "text/x-python", ".txt": "text/plain",
    ".yaml": "text/yaml", ".zip": "application/zip",
}  # fmt: skip
# Resources of an attempt: key of its record, unit of schema.org (UN/CEFACT), name.
USAGE = {
    "seconds": ("SEC", "elapsed time"),
    "cpu_seconds": ("SEC", "processor time"),
    "memory_bytes": ("AD", "peak memory"),
}
TERMS = "https://w3id.org/ro/terms/workflow-run"


def timestamp(seconds: float) -> str:
    """Return a Unix time in seconds as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def named_by_hash(path: str, sha256: str) -> str:
    """Return the ni: URI of a file; its path distinguishes files with the same content."""
    digest = base64.urlsafe_b64encode(bytes.fromhex(sha256)).decode().rstrip("=")
    return f"ni:///sha-256;{digest}?path={quote(path)}"


class Crate:
    """An RO-Crate under construction."""

    def __init__(
        self,
        recipe: Mapping[str, Any],
        jobs: Sequence[Mapping[str, Any]],
        manifest: Mapping[str, Any],
        source_names: Mapping[str, str],
    ):
        """Describe the archive as a whole.

        recipe        name, version, title, license
        jobs          entries of jobs, with checksums
        manifest      artifacts, outside (files that were read), source (commit)
        source_names  names in the archive of the workflow's source, by path
        """
        self.recipe, self.jobs, self.manifest, self.source_names = recipe, jobs, manifest, source_names
        self.files: dict[str, Any] = {}
        self.crate = ROCrate(gen_preview=False, version="1.1")
        self.crate.metadata.extra_contexts.append(f"{TERMS}/context")
        ends = [job["start"] + job["seconds"] for job in jobs]
        self.began, self.ended = timestamp(min(job["start"] for job in jobs)), timestamp(max(ends))
        root = self.crate.root_dataset
        root["datePublished"] = self.ended
        root["name"] = f"{recipe['title']}: {recipe['name']} {recipe['version']}"
        root["description"] = "How the models and figures of a run came about, from the text on, and what came out."
        root["license"] = recipe["license"] or "The license is not stated."
        root["conformsTo"] = [
            self.context(url, "CreativeWork", name=name, version=url.rpartition("/")[2])
            for url, name in PROFILES.items()
        ]

    def context(self, uri: str, kind: str, **properties: Any) -> ContextEntity:
        """Add an entity that is no file, and return it."""
        return self.crate.add(ContextEntity(self.crate, uri, properties={"@type": kind, **properties}))

    def file(self, path: str, digest: str | None, here: str | None, size: int | None = None) -> Any:
        """Return the entity of a file, which is added once; here  its name in the archive, None outside of it."""
        if path not in self.files:
            facts = {"name": path, "alternateName": path}
            facts |= {"sha256": digest} if digest else {}
            facts |= {"contentSize": str(size)} if size is not None else {}
            facts |= {"encodingFormat": FORMATS.get(Path(path).suffix, "application/octet-stream")}
            if here:
                self.files[path] = self.crate.add(File(self.crate, dest_path=here, properties=facts))
            elif digest:
                facts["@type"] = "File"
                self.files[path] = self.crate.add(DataEntity(self.crate, named_by_hash(path, digest), facts))
            else:
                self.files[path] = self.context(f"#{quote(path)}", "CreativeWork", **facts)
        return self.files[path]

    def artifact(self, path: str) -> list[Any]:
        """Return the entities of a path in a job's record: of a file, or of the files of a folder."""
        known = self.manifest["artifacts"]
        paths = [path] if path in known else [name for name in known if name.startswith(f"{path}/")]
        if paths:
            return [
                self.file(name, known[name]["sha256"], name if known[name]["included"] else None, known[name]["bytes"])
                for name in paths
            ]
        return [self.file(path, self.manifest["outside"].get(path), self.source_names.get(path))]

    def tools(self) -> tuple[dict[str, Any], dict[str, Any], ContextEntity]:
        """Add the workflow, tools, steps and Snakemake; return tools and steps by rule, and Snakemake's entity."""
        scripts = {job["rule"]: job["script"] for job in self.jobs}
        version = self.manifest["source"]["commit"] or self.recipe["version"]
        engine = self.context(
            "#snakemake", "SoftwareApplication", name="Snakemake", url="https://snakemake.github.io",
            version=self.recipe["snakemake"],
        )  # fmt: skip
        language = self.context(
            "https://w3id.org/workflowhub/workflow-ro-crate#snakemake", "ComputerLanguage", name="Snakemake",
            identifier={"@id": "https://doi.org/10.1093/bioinformatics/bts480"}, url={"@id": "https://snakemake.readthedocs.io"},
        )  # fmt: skip
        tools, steps = {}, {}
        for position, (rule, script) in enumerate(scripts.items()):
            path = f"source/{script}"
            facts = {"@type": ["File", "SoftwareSourceCode"], "name": Path(path).stem, "version": version}
            facts |= {"encodingFormat": FORMATS[".py"], "programmingLanguage": "Python", "url": path}
            if path not in self.files:
                self.files[path] = self.crate.add(File(self.crate, dest_path=path, properties=facts))
            tools[rule] = self.files[path]
            step = f"{WORKFLOW}#{rule}"
            steps[rule] = self.context(step, "HowToStep", position=str(position), workExample=tools[rule])
        kind = ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"]
        facts = {"@type": kind, "name": self.recipe["title"], "version": version, "programmingLanguage": language}
        facts |= {"hasPart": list(tools.values()), "step": list(steps.values()), "url": WORKFLOW}
        self.workflow = self.crate.add(File(self.crate, dest_path=WORKFLOW, properties=facts))
        self.crate.root_dataset["mainEntity"] = self.workflow
        return tools, steps, engine

    def action(self, job: Mapping[str, Any], tool: Any) -> ContextEntity:
        """Add the run of a job, and return its entity."""
        last = job["attempts"][-1]
        usage = [
            self.context(
                f"#{job['id']}/{key}", "PropertyValue", propertyID=f"{TERMS}#{key}", name=name, unitCode=unit,
                value=str(last[key]),
            )
            for key, (unit, name) in USAGE.items() if last.get(key) is not None
        ]  # fmt: skip
        inputs = [entity for path in sorted(job["inputs"]) for entity in self.artifact(path)]
        if job["params"] is not None:
            value = json.dumps(job["params"], sort_keys=True, ensure_ascii=False, default=str)
            inputs.append(self.context(f"#{job['id']}/recipe", "PropertyValue", name="recipe", value=value))
        facts: dict[str, Any] = {"name": f"{job['rule']} {job['id']}", "instrument": tool, "object": inputs}
        facts["result"] = [entity for path in sorted(job["outputs"]) for entity in self.artifact(path)]
        facts |= {"startTime": timestamp(job["start"]), "endTime": timestamp(job["start"] + job["seconds"])}
        facts |= {"actionStatus": DONE, "resourceUsage": usage, "description": description_of(job)}
        return self.context(f"#{job['id']}", "CreateAction", **facts)

    def described(self, names: Iterable[str]) -> dict[str, Any]:
        """Add all entities, and return the content of ro-crate-metadata.json; names  files of the archive

        Its order depends only on the content of the entities.
        """
        tools, steps, engine = self.tools()
        actions = [self.action(job, tools[job["rule"]]) for job in self.jobs]
        controls = [
            self.context(f"#control/{job['id']}", "ControlAction", instrument=steps[job["rule"]], object=action,
                         name=f"step {job['rule']}")
            for job, action in zip(self.jobs, actions, strict=True)
        ]  # fmt: skip
        archived = set(names)
        configs = [self.file(name, None, name) for name in sorted(archived) if name.startswith("config/")]
        read = [entity for path in self.manifest["outside"] for entity in self.artifact(path)]
        results = [entity for path in self.manifest["artifacts"] for entity in self.artifact(path)]
        run = self.context(
            "#run", "CreateAction", name="the run of the workflow", instrument=self.workflow, object=[*configs, *read],
            result=results, startTime=self.began, endTime=self.ended, actionStatus=DONE,
        )  # fmt: skip
        organized = self.context(
            "#snakemake-run", "OrganizeAction", name="the run of Snakemake", instrument=engine, object=controls,
            result=run, startTime=self.began, endTime=self.ended,
        )  # fmt: skip
        self.crate.root_dataset["mentions"] = [run, organized, *actions]
        for name in sorted(archived - {unquote(entity["@id"]) for entity in self.crate.data_entities}):
            self.file(name, None, name)
        metadata = self.crate.metadata.generate()
        metadata["@graph"] = sorted(metadata["@graph"], key=lambda entity: entity["@id"])
        return dict(metadata)


def description_of(job: Mapping[str, Any]) -> str:
    """Return host, software, accelerators and attempts of a job in words."""
    host = job["host"]
    where = f"{host['processors']} x {host['processor']} ({host['machine']}, {host['system']})"
    parts = [f"log {job['log']}", where, f"Python {host['python']}"]
    parts += [f"{name} {version}" for name, version in sorted(job["software"].items())]
    parts += [f"{count} x {kind}" for kind, count in sorted(job["accelerators"].items())]
    if len(job["attempts"]) > 1:
        parts.append(f"{len(job['attempts'])} attempts")
    for attempt in job["attempts"]:
        parts += [f"went on from step {attempt['resumed_from_step']}"] if "resumed_from_step" in attempt else []
        parts += [f"{attempt['repeated_steps']} steps were repeated"] if "repeated_steps" in attempt else []
    return "; ".join(parts)
