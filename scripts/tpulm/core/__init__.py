"""The foundation of all rooms, which knows nothing of language models and imports no other room.

Enter at `job`, the frame of every script, and at `ledger`, the records of what every job has read and written.
"""
