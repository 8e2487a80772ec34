"""What is paid for: rewards over trajectories, groups or steps, and rewards made of rewards. A verdict that cannot be had is None, never 0."""
