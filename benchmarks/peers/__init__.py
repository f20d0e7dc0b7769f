"""Public federated simulators on the workloads of the speed benchmark, each in a virtual environment of its own."""
