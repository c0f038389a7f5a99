"""Runs on a Ray cluster: `server` is an actor, `worker` what every worker's process does, `actors` and `train` start them."""
