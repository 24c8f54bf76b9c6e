"""What two or more scripts share, one idea per module."""
