"""A callback that logs |∇f(x^r) - g^{r+1}|^2, the error of the momentum, every ten rounds by default."""

import kedge


class GradientError:
    def __init__(self, every=10):
        self.every = every
        self.values = {}

    def on_start(self, run):
        self.x = run.server["x"]  # x^r, the model before the next round

    def on_round(self, run):
        if run.round % self.every == 0:
            gradient = run.ask(kedge.FullGradient(at=self.x)).mean["gradient"]  # ∇f(x^r), over all clients
            self.values[run.round] = float((gradient - run.server["g"]).square().sum())
        self.x = run.server["x"]
