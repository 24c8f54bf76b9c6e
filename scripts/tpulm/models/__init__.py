"""Models, our own and those of keras-hub and transformers: building, loading, sharding, exporting and sampling."""
