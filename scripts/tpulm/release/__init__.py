"""What leaves the machine: artifacts that are verified, published, signed, archived, and made again from an archive."""
