"""What several test files use: small models, hand-made episodes, loops on a bandit, learners, the battery's probes."""
