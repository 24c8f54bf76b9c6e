"""Croissant 1.0 metadata of a set of records (MLCommons).

The format: https://docs.mlcommons.org/croissant/docs/croissant-spec.html. Each shard is a file with its SHA-256.
Croissant has no way to read TFRecord; what a loader yields are two sets: `splits`, and `shards`, the table of the
manifest, by which a reader of TFRecord finds and checks the files.
"""

from collections.abc import Mapping

from tpulm.specs.artifacts import MANIFEST

CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
TFRECORD = "application/x-tfrecord"
SPLIT_COUNTS = ("documents", "records", "tokens")
SHARD_FIELDS = {"file": "sc:Text", "records": "sc:Integer", "bytes": "sc:Integer", "sha256": "sc:Text"}


def metadata(recipe: Mapping, manifest: Mapping, sha256: str) -> dict:
    """Return the metadata of a set of records as JSON-LD.

    recipe    name; repository on the hub, or None; license, or None
    manifest  the set's; sha256  of its file
    """
    length, vocabulary = manifest["tokens_per_record"], manifest["vocab_size"]
    found = {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": recipe["name"],
        "description": f"Records of {length} token ids below {vocabulary}, as TFRecord files of tf.train.Example with "
        f"the feature input_ids (int64); packing: {manifest['packing']}.",
        # A version of the content: the records are what the manifest says of them.
        "version": f"1.0.0+{sha256[:12]}",
        "distribution": [file(MANIFEST, "application/json", sha256), *shard_files(manifest)],
        "recordSet": [splits(manifest), shards()],
    }
    if recipe["license"]:
        found["license"] = recipe["license"]
    if recipe["repository"]:
        found["url"] = f"https://huggingface.co/datasets/{recipe['repository']}"
    return found


def file(path: str, encoding: str, sha256: str, size: int | None = None) -> dict:
    """Return what is said of a file beside the metadata; size in bytes."""
    told = {"@type": "cr:FileObject", "@id": path, "name": path, "contentUrl": path, "encodingFormat": encoding}
    return told | ({"contentSize": f"{size} B"} if size else {}) | {"sha256": sha256}


def shard_files(manifest: Mapping) -> list[dict]:
    """Return the files of all shards."""
    found = [shard for entry in manifest["splits"].values() for shard in entry["shards"]]
    return [file(shard["file"], TFRECORD, shard["sha256"], shard["bytes"]) for shard in found]


def splits(manifest: Mapping) -> dict:
    """Return the record set of the splits and what they hold, with its content."""
    known = [count for count in SPLIT_COUNTS if all(count in entry for entry in manifest["splits"].values())]
    fields = {"name": "sc:Text"} | dict.fromkeys(known, "sc:Integer")
    rows = [
        {f"splits/{name}": split if name == "name" else entry[name] for name in fields}
        for split, entry in manifest["splits"].items()
    ]
    return {
        "@type": "cr:RecordSet",
        "@id": "splits",
        "name": "splits",
        "description": f"{', '.join(known[:-1])} and {known[-1]} of each split.".capitalize(),
        "key": {"@id": "splits/name"},
        "field": [field("splits", name, kind) for name, kind in fields.items()],
        "data": rows,
    }


def shards() -> dict:
    """Return the record set of the shards, which is read from the manifest."""
    fields = [
        field("shards", name, kind)
        | {"source": {"fileObject": {"@id": "manifest.json"}, "extract": {"jsonPath": f"$.splits.*.shards[*].{name}"}}}
        for name, kind in SHARD_FIELDS.items()
    ]
    text = "The TFRecord files, with records, bytes and SHA-256 of each."
    return {"@type": "cr:RecordSet", "@id": "shards", "name": "shards", "description": text, "field": fields}


def field(records: str, name: str, kind: str) -> dict:
    """Return a field of a record set."""
    return {"@type": "cr:Field", "@id": f"{records}/{name}", "name": name, "dataType": kind}
