"""Answers to chapter 10."""


class CrossEntropy:
    def forward(ctx, logits, targets, smoothing=0.0):
        t = (1 - smoothing) * targets + smoothing / targets.shape[-1]
        shifted = logits - logits.max(axis=-1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
        ctx.save(np.exp(log_p) - t)
        return -(t * log_p).sum(axis=-1).mean()

    def backward(ctx, g):
        (difference,) = ctx.saved
        return g * difference / len(difference)
