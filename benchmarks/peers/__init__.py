"""Public federated simulators on the workloads of the speed benchmark, each in its own virtual environment."""
