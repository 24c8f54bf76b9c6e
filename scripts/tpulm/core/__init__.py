"""The foundation of all rooms, which knows nothing of language models and imports no other room.

Enter at `job`, the frame of every script, and at `ledger`, which tells what every job has read and written.
"""
