"""The documents of a shard: those of one file of its split, a part of them, or those of several files."""


def files_of_shard(shard: int, shards: int, files: int) -> range:
    """Return the indices of a split's files with a shard's documents: one, or several that no other shard reads.

    shard          counted from 0
    shards, files  how many of them the split has
    """
    if shards <= files:
        return range(shard * files // shards, (shard + 1) * files // shards)
    file = ((shard + 1) * files - 1) // shards
    return range(file, file + 1)


def shards_of_files(shard: int, shards: int, files: int) -> range:
    """Return the shards whose documents are in the same files as a shard's, itself included."""
    if shards <= files:
        return range(shard, shard + 1)
    file = files_of_shard(shard, shards, files).start
    return range(file * shards // files, (file + 1) * shards // files)
