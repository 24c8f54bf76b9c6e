"""Models that a person types into: which there are, and what each answers, part by part."""
