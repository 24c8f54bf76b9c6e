"""What leaves the machine: artifacts that are verified, published, archived, and made again from an archive."""
