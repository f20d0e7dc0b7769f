"""FedJAX 0.0.17 with jax 0.10.2: `algorithms.fed_avg` with the jit backend, its default on one device.

As its tutorials do it: in-memory federated data, its uniform client sampler, its shuffled and repeated batches (numpy,
no loader), an MLP of Haiku, SGD on the clients and SGD with rate 1 on the server. The first round compiles. A round
ends when its parameters are there (`block_until_ready`). XLA takes the cores it likes.

Shims: FedJAX calls `jax.tree_map`, which jax has removed; it is put back as `jax.tree_util.tree_map`. The pmap backend,
which could run clients on several CPU devices, needs more that jax has removed (`device_put_sharded`): not timed.
"""

import time

import jax
import numpy as np

if not hasattr(jax, "tree_map"):
    jax.tree_map = jax.tree_util.tree_map

import fedjax
import haiku
import jax.numpy as jnp

from benchmarks.peers.common import load, read_workload, report


def main() -> None:
    work = read_workload()
    features, labels = load(work.data)
    labels = labels.astype(np.int32)
    clients = {b"%04d" % i: {"x": features[i], "y": labels[i]} for i in range(work.clients)}
    network = haiku.transform(lambda batch: haiku.nets.MLP(work.sizes[1:])(batch["x"]))

    def loss(parameters: haiku.Params, batch: dict[str, jax.Array], key: jax.Array) -> jax.Array:
        logs = jax.nn.log_softmax(network.apply(parameters, key, batch))
        return -jnp.mean(jnp.take_along_axis(logs, batch["y"][:, None], axis=1))

    batches = fedjax.ShuffleRepeatBatchHParams(
        batch_size=work.batch, num_epochs=None, num_steps=work.steps, drop_remainder=True
    )
    sgd = fedjax.optimizers.sgd
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(jax.grad(loss), sgd(work.eta), sgd(1.0), batches)
    federation = fedjax.InMemoryFederatedData(clients)
    sampler = fedjax.client_samplers.UniformGetClientSampler(federation, num_clients=work.cohort, seed=1)
    state = algorithm.init(network.init(jax.random.PRNGKey(0), {"x": features[0, :1]}))
    marks = [time.perf_counter()]
    for _ in range(work.rounds):
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)
        marks.append(time.perf_counter())
    report(work, marks, "fedjax", "jax")


if __name__ == "__main__":
    main()
