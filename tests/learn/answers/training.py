"""Answers to chapters 11 and 12."""


def loss_and_gradients(loss_of, w, images, targets, micro_batch):
    for x in w.values():
        x.grad = None
    total = 0.0
    for start in range(0, len(images), micro_batch):
        piece = slice(start, start + micro_batch)
        share = len(images[piece]) / len(images)
        loss = loss_of(w, images[piece], targets[piece]) * share
        loss.backward()
        total += float(loss.data)
    return total, {name: np.zeros_like(x.data) if x.grad is None else x.grad for name, x in w.items()}


def train(w, heads, images, labels, steps, batch_size, peak, seed):
    rng, classes = np.random.default_rng(seed), len(w["head.bias"].data)
    optimiser, losses = Optimiser(w), []

    def loss_of(w, images, targets):
        return CrossEntropy.apply(cait(images, w, heads), targets=targets)

    for step in range(steps):
        chosen = rng.integers(len(images), size=batch_size)
        targets = one_hot(labels[chosen], classes)
        loss, gradients = loss_and_gradients(loss_of, w, images[chosen], targets, batch_size)
        optimiser.step(gradients, learning_rate(step, steps, steps // 10, peak))
        losses.append(loss)
    return losses
