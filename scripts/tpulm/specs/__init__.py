"""What models and training steps are, as plain data: no library for it is imported here."""
