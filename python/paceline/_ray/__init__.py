"""Runs on a Ray cluster: `server` is an actor, `worker` what a worker does; `actors` and `train` start both."""
