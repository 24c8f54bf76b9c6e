"""What is in a bucket, asked for once: Snakemake's storage plugin asks for each file that is not there by itself.

Planning 10,000 shards would take 100,000 requests, one after another.
"""

from typing import Any


def list_once(prefix: str) -> None:
    """Let Snakemake's storage plugin list all objects below gs://BUCKET/PREFIX/ when it asks for the first of them.

    What the listing has not, is not there. A folder is as new as what is in it, as the plugin has it.
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
