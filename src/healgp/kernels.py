"""Stationary kernels: value and slope as jitted scalar functions of the scaled distance.

A kernel is k(x, x′) = σ² φ(r²) with r² = Σ_d (x_d − x′_d)² / ℓ_d². Training needs φ and its slope
φ′ = dφ/dr², because ∂k/∂log ℓ_d = −2 σ² φ′(r²) (x_d − x′_d)² / ℓ_d² for every one of them.

A new kernel needs a scalar function, an entry in `KERNELS`, and a branch in `profile` and `values`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from healgp.jit import jit

#: Name of each kernel and its number in jitted code.
KERNELS = {"rbf": 0, "matern12": 1, "matern32": 2, "matern52": 3, "rational_quadratic": 4}
RBF, MATERN12, MATERN32, MATERN52, RATIONAL_QUADRATIC = KERNELS.values()

#: Kernels with a parameter beyond lengthscale and variance, and the name of it.
SHAPE_NAMES = {"rational_quadratic": "alpha"}


@dataclass(frozen=True)
class Hyperparameters:
    """θ, shared by all experts: ℓ [D], σ² (signal), σ_y² (noise), the kernel's own parameter."""

    lengthscales: np.ndarray
    signal_variance: float
    noise_variance: float
    shape: float = 1.0

    def to_log(self, ard: bool, shaped: bool) -> np.ndarray:
        """log θ as the optimiser sees it: ℓ (one if isotropic), σ², σ_y², shape (if it has one)."""
        lengthscales = self.lengthscales if ard else self.lengthscales[:1]
        tail = [self.signal_variance, self.noise_variance] + [self.shape] * shaped
        return np.log(np.concatenate([lengthscales, tail]))

    @staticmethod
    def from_log(theta: np.ndarray, D: int, ard: bool) -> Hyperparameters:
        """The inverse of `to_log` for D input dimensions."""
        k = D if ard else 1
        values = np.exp(theta)
        tail = [float(v) for v in values[k:]]
        return Hyperparameters(np.broadcast_to(values[:k], (D,)).copy(), *tail)


# Nothing but "contract": reordering would break exp and log.
_LOOP, _SCALAR = jit("contract"), jit("contract", inline=True)


@intrinsic
def _bits(context, x):
    """The bits of a float as an integer."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), generate


@intrinsic
def _float(context, x):
    """The float with the given bits."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


# Numba calls the C library's exp and log one number at a time. These polynomials (Chebyshev
# interpolants, relative error below 3e-16) are plain arithmetic that LLVM vectorises in a loop.
@_SCALAR
def exp(x):
    """eˣ for x ≤ 0; below −700 it stays at e⁻⁷⁰⁰."""
    x = max(x, -700.0)
    shifted = x * 1.4426950408889634 + 6755399441055744.0  # rounds to an integer in the low bits
    k = shifted - 6755399441055744.0
    r = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10
    p = 2.5110049204818658e-08
    p = p * r + 2.763265472252779e-07
    p = p * r + 2.755724088722987e-06
    p = p * r + 2.4801485441561313e-05
    p = p * r + 0.00019841269890076403
    p = p * r + 0.0013888888952352863
    p = p * r + 0.008333333333319589
    p = p * r + 0.04166666666648795
    p = p * r + 0.1666666666666668
    p = p * r + 0.5000000000000019
    p = p * r + 1.0
    p = p * r + 1.0
    return p * _float((_bits(shifted) + 1023) << 52)


@_SCALAR
def log(x):
    """log x for normal x > 0."""
    # x = 2ᵏ u with u in [√½, √2): shifting by the bits of √½ makes the exponent field k.
    bits = _bits(x) - 4604544271217802189
    k = bits >> 52
    u = _float((bits & 4503599627370495) + 4604544271217802189)
    s = (u - 1.0) / (u + 1.0)
    t = s * s
    p = 0.07405641283874514
    p = p * t + 0.0765618886791573
    p = p * t + 0.0909181864974045
    p = p * t + 0.11111098476681508
    p = p * t + 0.1428571438080474
    p = p * t + 0.19999999999649035
    p = p * t + 0.33333333333333826
    p = p * t + 1.0
    return k * 0.693147180559945309417 + 2.0 * s * p


@_SCALAR
def decay(x):
    """eˣ for x ≤ 0, and 0 below −100: to all digits of K such rows know nothing of one another, but
    products of such numbers are denormal, and some processors take a hundred times as long over
    those."""
    return 0.0 if x < -100.0 else exp(x)


@_SCALAR
def rbf(r2, shape):
    """φ = exp(−r²/2)."""
    phi = decay(-0.5 * r2)
    return phi, -0.5 * phi


@_SCALAR
def matern12(r2, shape):
    """φ = exp(−r). Its slope is infinite at 0, where it is only ever multiplied by 0."""
    r = np.sqrt(r2)
    phi = decay(-r)
    return phi, -0.5 * phi / r if r > 0.0 else 0.0


@_SCALAR
def matern32(r2, shape):
    """φ = (1 + √3 r) exp(−√3 r)."""
    a = min(np.sqrt(3.0 * r2), 700.0)
    e = decay(-a)
    return (1.0 + a) * e, -1.5 * e


@_SCALAR
def matern52(r2, shape):
    """φ = (1 + √5 r + 5r²/3) exp(−√5 r)."""
    a = min(np.sqrt(5.0 * r2), 700.0)
    e = decay(-a)
    return (1.0 + a + a * a / 3.0) * e, -5.0 / 6.0 * (1.0 + a) * e


@_SCALAR
def rational_quadratic(r2, shape):
    """φ = (1 + r²/2α)^(−α), the shape being α; and third, ∂φ/∂log α."""
    x = min(r2 / (2.0 * shape), 1e300)
    u = 1.0 + x
    # log(1 + x): the second term brings back what 1 + x lost to rounding, which α would magnify
    log_u = log(u) + (x - (u - 1.0)) / u
    phi = decay(-shape * log_u)
    return phi, -0.5 * phi / u, shape * phi * (x / u - log_u)


@_LOOP
def squared_distances(Z, first, n, point, r2):
    """r2[j] = Σ_d (Z[d, first + j] − point[d])² for n columns of Z; differences, not products, so
    that near-duplicates keep their digits."""
    D, last = Z.shape[0], first + n
    a, A = point[0], Z[0, first:last]
    for j in range(n):
        da = A[j] - a
        r2[j] = da * da
    d = 1
    while d + 4 <= D:  # four dimensions at a time: r2 is loaded and stored a quarter as often
        a, b, c, e = point[d], point[d + 1], point[d + 2], point[d + 3]
        A, B = Z[d, first:last], Z[d + 1, first:last]
        C, E = Z[d + 2, first:last], Z[d + 3, first:last]
        for j in range(n):
            da, db, dc, de = A[j] - a, B[j] - b, C[j] - c, E[j] - e
            r2[j] += (da * da + db * db) + (dc * dc + de * de)
        d += 4
    while d < D:
        a, A = point[d], Z[d, first:last]
        for j in range(n):
            da = A[j] - a
            r2[j] += da * da
        d += 1


@_LOOP
def profile(kernel, shape, r2, n, phi, slope, tilt):
    """φ and φ′ of the first n squared distances, and ∂φ/∂log shape where the kernel has a shape."""
    if kernel == RBF:
        for j in range(n):
            phi[j], slope[j] = rbf(r2[j], shape)
    elif kernel == MATERN12:
        for j in range(n):
            phi[j], slope[j] = matern12(r2[j], shape)
    elif kernel == MATERN32:
        for j in range(n):
            phi[j], slope[j] = matern32(r2[j], shape)
    elif kernel == MATERN52:
        for j in range(n):
            phi[j], slope[j] = matern52(r2[j], shape)
    elif kernel == RATIONAL_QUADRATIC:
        for j in range(n):
            phi[j], slope[j], tilt[j] = rational_quadratic(r2[j], shape)
    else:
        raise ValueError("unknown kernel number")


@_LOOP
def values(kernel, shape, r2, n, phi):
    """φ of the first n squared distances: `profile` without the slope."""
    if kernel == RBF:
        for j in range(n):
            phi[j] = rbf(r2[j], shape)[0]
    elif kernel == MATERN12:
        for j in range(n):
            phi[j] = matern12(r2[j], shape)[0]
    elif kernel == MATERN32:
        for j in range(n):
            phi[j] = matern32(r2[j], shape)[0]
    elif kernel == MATERN52:
        for j in range(n):
            phi[j] = matern52(r2[j], shape)[0]
    elif kernel == RATIONAL_QUADRATIC:
        for j in range(n):
            phi[j] = rational_quadratic(r2[j], shape)[0]
    else:
        raise ValueError("unknown kernel number")
