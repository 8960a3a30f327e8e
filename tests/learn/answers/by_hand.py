"""Answers to chapter 1."""


def numerical_derivative(f, x, delta=1e-5):
    return (f(x + delta) - f(x - delta)) / (2 * delta)


def neuron_gradient(x, w, b, t):
    y = math.tanh(w * x + b)
    dz = (y - t) * (1 - y * y)
    return dz * x, dz, dz * w
