"""A SuperExec that keeps torch and kedge imported, and forks for every message instead of starting Python again.

    flower-supernode ... --isolation process --port 9094
    python -m kedge.flower.warm --insecure --runtime-api-address 127.0.0.1:9094

It takes the arguments of flower-superexec. Flower has no supported way to do this: one method of its executor is
replaced, so it works only with versions it was tried with, and says so with any other (`is_supported`).
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NoReturn

TRIED = ("1.41.",)
"""Versions of Flower with which this was tried."""


def is_supported() -> bool:
    """Whether this can be used here."""
    if not hasattr(os, "fork") or not version("flwr").startswith(TRIED):
        return False
    try:
        from flwr.supercore.cli import flower_superexec  # noqa: F401
        from flwr.supercore.constant import TaskType
        from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
        from flwr.supercore.superexec.executor.types import LaunchResult
        from flwr.supernode.cli import flwr_clientapp  # noqa: F401
    except ImportError:
        return False
    return (
        hasattr(TaskType, "CLIENT_APP") and hasattr(SubprocessExecutor, "launch") and hasattr(LaunchResult, "accepted")
    )


def end_with(function: Callable[[], object]) -> NoReturn:
    """Call a function and end this process, a fork, without the clean-up that is for its parent to do."""
    code = 1
    try:
        try:
            function()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:
            traceback.print_exc()
        # os._exit flushes nothing.
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def main() -> None:
    """Be a SuperExec."""
    import torch
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec.executor import subprocess_executor
    from flwr.supercore.superexec.executor.types import LaunchResult
    from flwr.supernode.cli import flwr_clientapp

    import kedge.flower
    import kedge.problem  # noqa: F401

    # Before a fork, no thread of torch may have been started.
    torch.set_num_threads(1 if os.environ.get("OMP_NUM_THREADS") == "1" else torch.get_num_threads())
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system buries the children
    usual = subprocess_executor.SubprocessExecutor.launch

    def launch(self: Any, spec: Any) -> Any:
        if spec.task_type != TaskType.CLIENT_APP:
            return usual(self, spec)
        sys.stdout.flush()
        sys.stderr.flush()
        if os.fork() == 0:
            end_with(lambda: answer(spec))
        return LaunchResult.accepted()

    def answer(spec: Any) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        sys.argv = ["flwr-clientapp", "--runtime-api-address", spec.runtime_api_address, "--token", spec.token]
        sys.argv += ["--parent-pid", str(spec.parent_pid)] if spec.parent_pid is not None else []
        trusted = spec.root_certificates_path
        sys.argv += ["--insecure"] if spec.insecure else ["--root-certificates", trusted] if trusted else []
        flwr_clientapp()

    subprocess_executor.SubprocessExecutor.launch = launch  # type: ignore[method-assign]
    flower_superexec()


if __name__ == "__main__":
    main()
