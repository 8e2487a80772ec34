"""What to try next, how often, with what help: `select(n, back, history) -> requests`, asked again until it asks for nothing more."""
