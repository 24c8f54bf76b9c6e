"""How tools/new_config.py writes a config for a text: an idea a module."""
