"""kedge's algorithms on real federations, run by Flower.

A Flower app in two lines: ``app = server_app(model)`` and ``app = client_app(model, load_data)``. Everything else, the
algorithm included, is in the run config; `docs/deploy.md` has all of it.
"""

from kedge.errors import UsageError


class FlowerMissingError(UsageError, ImportError):
    """Flower is not installed."""


try:
    import flwr.app  # noqa: F401
except ImportError as _error:
    raise FlowerMissingError(
        "kedge.flower needs Flower, which is not installed; run `pip install 'kedge[flower]'`"
    ) from _error

from kedge.flower.client import client_app, client_number  # noqa: E402
from kedge.flower.server import server_app  # noqa: E402

__all__ = ["FlowerMissingError", "client_app", "client_number", "server_app"]
