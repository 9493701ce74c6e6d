"""The formulas of the paper, written a second time and as plainly as possible."""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial.distance import cdist


def kernel(name, A, B, lengthscales, signal, shape=1.0):
    A, B = A / lengthscales, B / lengthscales
    r = cdist(A, B)
    if name == "rbf":
        phi = np.exp(-(r**2) / 2)
    elif name == "matern12":
        phi = np.exp(-r)
    elif name == "matern32":
        phi = (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r)
    elif name == "matern52":
        phi = (1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r)
    else:
        phi = (1 + r**2 / (2 * shape)) ** -shape
    return signal * phi


def gp(name, X, y, new, lengthscales, signal, noise, shape=1.0):
    """Latent mean and variance, and the log marginal likelihood, of an exact GP."""
    K = kernel(name, X, X, lengthscales, signal, shape) + noise * np.eye(len(X))
    k = kernel(name, X, new, lengthscales, signal, shape)
    factor = cho_factor(K, lower=True)
    alpha = cho_solve(factor, y)
    var = signal - np.sum(k * cho_solve(factor, k), axis=0)
    log_det = 2 * np.log(np.diag(factor[0])).sum()
    log_likelihood = -0.5 * (y @ alpha + log_det + len(y) * np.log(2 * np.pi))
    return k.T @ alpha, var, log_likelihood


def weights(name, mean, var, prior_var, temperature, normalized, prior_mean=0.0):
    """One row and one expert at a time."""
    J, n = mean.shape
    prior_var, prior_mean = np.broadcast_to(prior_var, n), np.broadcast_to(prior_mean, n)
    out = np.empty((J, n))
    for i in range(n):
        for j in range(J):
            gain = 0.5 * (np.log(prior_var[i]) - np.log(var[j, i]))
            distance = (mean[j, i] - prior_mean[i]) ** 2
            distance += (np.sqrt(var[j, i]) - np.sqrt(prior_var[i])) ** 2
            out[j, i] = {
                "ones": 1.0,
                "uniform": 1 / J,
                "entropy": gain,
                "softmax_variance": np.exp(-temperature * var[j, i]),
                "softmax_entropy": np.exp(temperature * gain),
                "softmax_wasserstein": np.exp(temperature * distance),
            }[name]
        if normalized:
            out[:, i] /= out[:, i].sum()
    return out


def aggregate(rule, mean, var, beta, prior_var, prior_mean=0.0):
    """The equations of section 2.2 and 3 of the paper, one row at a time."""
    J, n = mean.shape
    prior_var, prior_mean = np.broadcast_to(prior_var, n), np.broadcast_to(prior_mean, n)
    m, v = np.empty(n), np.empty(n)
    for i in range(n):
        b, s, u, p, c = beta[:, i], var[:, i], mean[:, i], prior_var[i], prior_mean[i]
        if rule in ("poe", "gpoe"):
            v[i] = 1 / sum(b[j] / s[j] for j in range(J))
            m[i] = v[i] * sum(b[j] / s[j] * u[j] for j in range(J))
        elif rule in ("bcm", "rbcm", "grbcm"):
            v[i] = 1 / (sum(b[j] / s[j] for j in range(J)) + (1 - b.sum()) / p)
            m[i] = v[i] * (sum(b[j] / s[j] * u[j] for j in range(J)) - (b.sum() - 1) / p * c)
        elif rule == "barycenter":
            m[i], v[i] = b @ u, b @ s
        else:
            m[i], v[i] = b @ u, (b @ np.sqrt(s)) ** 2
    return m, v
