"""Personal heads (FedPer, Arivazhagan et al. 2019): the last layer stays with its client, the others are shared."""

import kedge


def main(rounds: int = 30) -> tuple[kedge.Result, kedge.Result]:
    """Train with personal heads, and with everything shared."""
    federation = kedge.load_federation("digits", clients=20, alpha=0.1, client_tests=0.2)
    model = kedge.build_model("mlp", (64,), 10)  # its layers are 1, the hidden one, and 3, the head
    run = {"rounds": rounds, "cohort": 10, "batch_size": 8, "eval_every": 10, "eval_clients": True}
    personal = kedge.simulate(model, federation, kedge.FedAvg(eta=0.1), local_update=kedge.Personal("3."), **run)
    shared = kedge.simulate(model, federation, kedge.FedAvg(eta=0.1), **run)
    return personal, shared


if __name__ == "__main__":
    for result in main():
        print(result.history[-1]["clients_test_accuracy"], result.history[-1]["bytes_up"])
