"""Runs whose processes are started by torchrun, srun or mpirun.

`launchers` reads what they tell a process. Rank 0 starts a `server` as its child, and tells the others where it is
through a `rendezvous`. When the processes are started again, `resumption` finds their run. `launched` puts that
together.
"""
