"""Factors, solves and inverses against NumPy, at every size around a split."""

import numpy as np
import pytest

from healgp import linalg

SIZES = [1, 2, 5, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 250, 333, 500]


def positive_definite(rng, m):
    A = rng.standard_normal((m, m))
    return A @ A.T + np.eye(m)


@pytest.mark.parametrize("m", SIZES)
def test_cholesky_solve_and_inverse(rng, m):
    K = positive_definite(rng, m)
    factor = np.triu(K).ravel()  # what is below the diagonal is never read
    assert linalg.cholesky(factor, m)
    U = np.triu(factor.reshape(m, m))
    np.testing.assert_allclose(U, np.linalg.cholesky(K).T, rtol=1e-9, atol=1e-10)
    for columns in (1, 3, 70):
        B = rng.standard_normal((m, columns))
        solved = B.ravel().copy()
        linalg.solve(factor, m, solved, columns)
        np.testing.assert_allclose(U.T @ solved.reshape(m, columns), B, atol=1e-11)
    y = rng.standard_normal(m)
    x = y.copy()
    linalg.solve_vector(factor, m, x)
    np.testing.assert_allclose(K @ x, y, atol=1e-9)
    linalg.invert(factor, m)
    inverse = np.triu(factor.reshape(m, m))
    inverse = inverse + np.triu(inverse, 1).T
    np.testing.assert_allclose(inverse, np.linalg.inv(K), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("m", [5, 40, 200])
@pytest.mark.parametrize("bad", [-1.0, 0.0, np.nan])
def test_what_is_not_positive_definite_is_said(rng, m, bad):
    for where in (0, m // 2, m - 1):
        K = positive_definite(rng, m)
        K[where, where] = bad
        assert not linalg.cholesky(K.ravel(), m)


def test_ill_conditioned_factor_is_backward_stable(rng):
    """UᵀU reproduces K to rounding, whatever the condition, as LAPACK's does."""
    x = np.linspace(0, 1, 400)
    K = np.exp(-0.5 * (x[:, None] - x) ** 2 / 0.3**2) + 1e-12 * np.eye(400)
    factor = K.ravel().copy()
    assert linalg.cholesky(factor, 400)
    U = np.triu(factor.reshape(400, 400))
    np.testing.assert_allclose(U.T @ U, K, atol=1e-13)
