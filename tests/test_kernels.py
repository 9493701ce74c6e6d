import mpmath
import numpy as np
import pytest

from healgp import kernels
from healgp.kernels import KERNELS
from naive import kernel as naive_kernel


def profile(name, r2, shape=1.0):
    phi, slope, tilt = (np.empty_like(r2) for _ in range(3))
    kernels.profile(KERNELS[name], shape, r2, len(r2), phi, slope, tilt)
    return phi, slope, tilt


def test_exp_and_log_have_full_precision(rng):
    x = np.concatenate([-np.logspace(-300, 2.8, 4000), [0.0]])
    ours = np.array([kernels.exp(v) for v in x])
    np.testing.assert_allclose(ours, np.exp(x), rtol=4e-16)
    assert 0 < kernels.exp(-1e300) < 1e-300
    u = np.concatenate([np.logspace(-300, 300, 4000), 1 + np.logspace(-16, 0, 500)])
    ours = np.array([kernels.log(v) for v in u])
    np.testing.assert_allclose(ours, np.log(u), rtol=5e-16, atol=3e-16)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("shape", [0.3, 1.0, 40.0])
def test_value_against_naive(name, shape, rng):
    A, B = rng.standard_normal((30, 5)), rng.standard_normal((1, 5))
    r2 = np.empty(30)
    kernels.squared_distances(np.ascontiguousarray(A.T), 0, 30, B[0], r2)
    expected = naive_kernel(name, A, B, 1.0, 1.0, shape)[:, 0]
    np.testing.assert_allclose(profile(name, r2, shape)[0], expected, rtol=1e-13)
    phi = np.empty(30)
    kernels.values(KERNELS[name], shape, r2, 30, phi)
    np.testing.assert_allclose(phi, expected, rtol=1e-13)


@pytest.mark.parametrize("D", range(1, 14))
def test_squared_distances_in_any_dimension(D, rng):
    A, b, r2 = rng.standard_normal((9, D)), rng.standard_normal(D), np.empty(7)
    kernels.squared_distances(np.ascontiguousarray(A.T), 2, 7, b, r2)
    np.testing.assert_allclose(r2, ((A[2:] - b) ** 2).sum(1), rtol=1e-14)


@pytest.mark.parametrize("name", KERNELS)
def test_slope_against_finite_differences(name):
    r2, h = np.linspace(0.05, 9.0, 40), 1e-6
    numeric = (profile(name, r2 + h, 0.7)[0] - profile(name, r2 - h, 0.7)[0]) / (2 * h)
    np.testing.assert_allclose(profile(name, r2, 0.7)[1], numeric, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("alpha", [0.05, 0.7, 30.0, 1000.0])
def test_rational_quadratic_tilt(alpha):
    """∂φ/∂log α = αφ((u − 1)/u − log u), against 50 digits."""
    r2 = np.concatenate([[0.0], np.logspace(-6, 4, 60)])
    with mpmath.workdps(50):
        expected = []
        for r in r2:
            u = 1 + mpmath.mpf(float(r)) / (2 * mpmath.mpf(alpha))
            phi = u**-alpha
            known = phi >= mpmath.exp(-100)  # else 0, as in all kernels
            expected.append(float(known * alpha * phi * ((u - 1) / u - mpmath.log(u))))
    np.testing.assert_allclose(
        profile("rational_quadratic", r2, alpha)[2], expected, rtol=1e-6, atol=1e-300
    )


@pytest.mark.parametrize("name", KERNELS)
def test_equal_points_and_far_points(name):
    phi, slope, _ = profile(name, np.array([0.0, 1e12]))
    assert phi[0] == 1.0
    assert 0 <= phi[1] < 1e-6
    assert np.isfinite(slope).all()


@pytest.mark.parametrize("name", KERNELS)
def test_far_points_are_independent_and_no_product_is_denormal(name):
    r2 = np.logspace(-3, 7, 2000)
    phi, slope, tilt = profile(name, r2, 500.0)
    for found in (phi, slope, tilt if name in kernels.SHAPE_NAMES else phi):
        assert np.isfinite(found).all()
        small = np.abs(found[found != 0.0]).min()
        assert small**5 > np.finfo(float).tiny
    assert phi[0] > 0.9
    assert phi[-1] == 0.0
    far = np.flatnonzero(phi == 0.0)[0]
    assert phi[far - 1] < 1e-35  # nothing that could be seen beside any noise or jitter is cut off
    assert not phi[far:].any()
