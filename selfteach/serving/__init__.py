"""A trained model, asked for text: loaded from a run or a folder, in a terminal or behind OpenAI's HTTP interface."""
