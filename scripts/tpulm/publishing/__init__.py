"""Artifacts put where others find them: repositories of the Hugging Face Hub, folders of a bucket."""
