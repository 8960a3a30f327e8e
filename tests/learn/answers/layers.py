"""Answers to chapter 4: softmax, layer norm, GELU."""


class Softmax:
    def backward(ctx, g):
        (y,) = ctx.saved
        return y * (g - (g * y).sum(axis=-1, keepdims=True))


class LayerNorm:
    def forward(ctx, x, weight, bias, eps=1e-6):
        centred = x - x.mean(axis=-1, keepdims=True)
        std = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + eps)
        xhat = centred / std
        ctx.save(xhat, std, weight)
        return weight * xhat + bias

    def backward(ctx, g):
        xhat, std, weight = ctx.saved
        gw = g * weight
        from_mean = gw.mean(axis=-1, keepdims=True)
        from_variance = xhat * (gw * xhat).mean(axis=-1, keepdims=True)
        samples = tuple(range(g.ndim - 1))
        return (gw - from_mean - from_variance) / std, (g * xhat).sum(axis=samples), g.sum(axis=samples)


class Gelu:
    def forward(ctx, x):
        phi = 0.5 * (1 + erf(x * math.sqrt(0.5)))
        density = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        ctx.save(phi + x * density)
        return x * phi

    def backward(ctx, g):
        (derivative,) = ctx.saved
        return g * derivative
