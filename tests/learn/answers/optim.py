"""Answers to chapter 9."""


def adamw(theta, g, m, v, t, lr, decay, betas=(0.9, 0.999), eps=1e-8):
    b1, b2 = betas
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g**2
    m_hat, v_hat = m / (1 - b1**t), v / (1 - b2**t)
    return theta - lr * (m_hat / (np.sqrt(v_hat) + eps) + decay * theta), m, v


def learning_rate(step, total, warmup, peak, start=1e-6, final=1e-5):
    if step < warmup:
        return start + (peak - start) * step / warmup
    share = min(1.0, step / total)
    return final + (peak - final) * (1 + math.cos(math.pi * share)) / 2
