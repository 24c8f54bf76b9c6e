"""Which documents a shard has: those of one file of its split, a part of them, or of several files."""


def files_of_shard(shard: int, shards: int, files: int) -> range:
    """Return the files of a split that a shard's documents are in: one, or several that no other shard is of.

    shards, files  how many the split has
    """
    if shards <= files:
        return range(shard * files // shards, (shard + 1) * files // shards)
    file = ((shard + 1) * files - 1) // shards
    return range(file, file + 1)


def shards_of_files(shard: int, shards: int, files: int) -> range:
    """Return the shards that have their documents in the same files as a shard: itself and its neighbours."""
    if shards <= files:
        return range(shard, shard + 1)
    file = files_of_shard(shard, shards, files).start
    return range(file * shards // files, (file + 1) * shards // files)
