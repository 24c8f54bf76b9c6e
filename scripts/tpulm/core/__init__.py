"""The foundation of all rooms: errors, atomic file writes, arrays, the frame of a job, the lock of the folder, hosts,
accelerators, resource requests, seeded random streams, Google Cloud Storage. It knows nothing about language models and
imports no other room.
"""
