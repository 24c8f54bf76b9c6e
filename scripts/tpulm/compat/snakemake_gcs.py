"""Let Snakemake's storage plugin for Google Cloud Storage list all objects of a bucket's folder at once.

What  `StorageObject.inventory` and `get_inventory_parent` are replaced; `_local_suffix_from_key`, `cache_key` and the
      cache of Snakemake's IO are used.
Why   the plugin lists the folder of each file by itself, and sends another request for each absent file.
Gain  planning 10,000 shards takes a few listings instead of 100,000 requests, one after another.
Until the plugin lists all below the storage prefix at once, and counts other objects as absent.
"""

from typing import Any


def list_once(prefix: str) -> None:
    """Let the plugin list all objects below gs://BUCKET/PREFIX/ when Snakemake needs the first of them.

    Other objects count as absent. A folder has the time of its newest object, as in the plugin.
    """
    from snakemake_interface_storage_plugins.io import Mtime
    from snakemake_storage_plugin_gcs import StorageObject

    by_file, parent_of = StorageObject.inventory, StorageObject.get_inventory_parent
    folder = prefix.split("/", 3)[3]

    def get_inventory_parent(self: Any) -> str:
        if not self.query.startswith(prefix):
            return parent_of(self)
        return self.cache_key(self._local_suffix_from_key(folder.rstrip("/")))

    async def inventory(self: Any, cache: Any) -> None:
        if not self.query.startswith(prefix):
            await by_file(self, cache)
            return
        newest: dict[str, float] = {}
        top = self.get_inventory_parent()
        for blob in self.client.list_blobs(self.bucket_name, prefix=folder):
            key = self.cache_key(self._local_suffix_from_key(blob.name))
            cache.size[key] = blob.size
            while len(key) > len(top):
                newest[key] = max(newest.get(key, 0.0), blob.updated.timestamp())
                key = key.rpartition("/")[0]
                cache.size.setdefault(key, 0)
        for key, updated in newest.items():
            cache.exists_in_storage[key] = True
            cache.mtime[key] = Mtime(storage=updated)
        cache.exists_in_storage.has_inventory.add(top)

    StorageObject.inventory, StorageObject.get_inventory_parent = inventory, get_inventory_parent
