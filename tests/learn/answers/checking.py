"""Answers to chapter 4."""


def gradient_is_right(f, backward, x, seed=0):
    rng = np.random.default_rng([seed, 4])
    step = 1e-4
    for _ in range(3):
        v = rng.standard_normal(np.shape(f(x)))
        kept = x.copy(), v.copy()
        gradient = backward(x, v)
        if not (np.array_equal(x, kept[0]) and np.array_equal(v, kept[1])) or np.shape(gradient) != x.shape:
            return False
        for _ in range(3):
            u = rng.standard_normal(x.shape)
            slopes = v * (f(x + step * u) - f(x - step * u)) / (2 * step)  # the terms of v . (J u)
            difference = abs((gradient * u).sum() - slopes.sum())
            if not difference <= 1e-6 * np.abs(slopes).sum() + 1e-10:
                return False
    return True
