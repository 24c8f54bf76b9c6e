"""What is in a bucket, asked for once: Snakemake's storage plugin asks for each file that is not there by itself.

Planning 10,000 shards would take 50,000 requests, one after another.
"""

from typing import Any


def list_once(prefix: str) -> None:
    """Let Snakemake's storage plugin list all objects below gs://BUCKET/PREFIX/ when it asks for the first of them.

    What the listing has not, is known not to be there; a folder that it has something of is asked for as before.
    """
    from snakemake_interface_storage_plugins.io import Mtime
    from snakemake_storage_plugin_gcs import StorageObject

    by_file = StorageObject.inventory
    listed: dict[Any, set[str]] = {}  # by Snakemake's cache: the objects and their folders

    def listing(asked: Any, cache: Any) -> set[str]:
        found: set[str] = set()
        for blob in asked.client.list_blobs(asked.bucket_name, prefix=prefix.split("/", 3)[3]):
            key = asked.cache_key(asked._local_suffix_from_key(blob.name))
            cache.exists_in_storage[key] = True
            cache.mtime[key] = Mtime(storage=blob.updated.timestamp())
            cache.size[key] = blob.size
            while key not in found:
                found.add(key)
                key = key.rpartition("/")[0]
        return found

    async def inventory(self: Any, cache: Any) -> None:
        if not self.query.startswith(prefix):
            await by_file(self, cache)
            return
        if cache not in listed:
            listed[cache] = listing(self, cache)
        if self.cache_key() not in listed[cache]:
            cache.exists_in_storage[self.cache_key()] = False

    StorageObject.inventory = inventory
