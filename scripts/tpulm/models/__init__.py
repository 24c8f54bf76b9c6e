"""Models of keras-hub and transformers: building, loading, sharding, exporting and sampling."""
