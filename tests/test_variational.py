"""Sparse variational experts against exact ones, naive formulas and finite differences."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from healgp import metrics
from healgp.engines.local import LocalEngine
from healgp.experts import sparse as sparse_module
from healgp.experts.sparse import SparseCommittee
from healgp.experts.variational import Expert, Frame, Posterior, Sites, choose_inducing
from healgp.kernels import KERNELS, Hyperparameters
from healgp.likelihoods import Bernoulli, Gaussian, Poisson, RobustMax, Softmax
from naive import gp
from naive import kernel as naive_kernel

THETA = Hyperparameters(np.array([0.8, 1.2, 1.5]), 1.7, 0.3, 1.3)


def rows(rng, n=40):
    X = rng.standard_normal((n, 3))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * rng.standard_normal(n)


def likelihoods(rng, n=40):
    yield Gaussian(np.log(0.3)), rng.standard_normal(n)
    yield Poisson(0.4), rng.poisson(2.0, n).astype(float)
    yield Bernoulli(), rng.integers(0, 2, n).astype(float)
    yield RobustMax(n_classes=4), rng.integers(0, 4, n).astype(float)
    yield Softmax(n_classes=4), rng.integers(0, 4, n).astype(float)


def random_posterior(rng, C, M):
    A = rng.standard_normal((C, M, M))
    precision = np.eye(M) + A @ A.transpose(0, 2, 1)
    return Posterior.of(precision, 3 * rng.standard_normal((C, M)))


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradient_by_kernel_and_inducing_inputs(kernel, rng):
    X, _ = rows(rng)
    Z = rng.standard_normal((6, 3))
    for likelihood, y in likelihoods(rng):
        q = random_posterior(rng, likelihood.n_latent, 6)

        def elbo(log_ell, log_signal, log_shape, parameter, Z, kernel=kernel, q=q, y=y,
                 likelihood=likelihood):  # fmt: skip
            theta = Hyperparameters(np.exp(log_ell), np.exp(log_signal), 1.0, np.exp(log_shape))
            if likelihood.parameter is not None:
                likelihood = likelihood.with_parameter(parameter)
            return Expert(Frame.of(kernel, theta, Z), likelihood, X, y).evaluate(q).elbo

        point = [np.log(THETA.lengthscales), np.log(1.7), np.log(1.3), likelihood.parameter or 0, Z]
        g = Expert(Frame.of(kernel, THETA, Z), likelihood, X, y).evaluate(q, gradient=True).gradient
        found = [g.lengthscales, g.signal, g.shape, g.parameter, g.inducing]
        for k, gradient in enumerate(found):
            base = np.asarray(point[k], dtype=float)
            for index in np.ndindex(base.shape):
                values = []
                for h in (1e-5, -1e-5):
                    moved = base.copy()
                    moved[index] += h
                    values.append(elbo(*point[:k], moved, *point[k + 1 :]))
                difference = (values[0] - values[1]) / 2e-5
                assert np.asarray(gradient)[index] == pytest.approx(difference, rel=1e-5, abs=2e-4)


def test_natural_gradient_is_the_gradient_in_mean_parameters(rng):
    """A step's direction is ∂ELBO/∂(E[v], E[vvᵀ]): with λ and g the sites that it leads to,
    V(g − λ…) must be what finite differences in m and S give."""
    X, _ = rows(rng)
    frame = Frame.of("rbf", THETA, rng.standard_normal((5, 3)))
    for likelihood, y in likelihoods(rng):
        if isinstance(likelihood, RobustMax):
            continue  # its negative weights are cut off
        C = likelihood.n_latent
        q = random_posterior(rng, C, 5)
        expert = Expert(frame, likelihood, X, y)
        new = expert.evaluate(q).sites
        V = frame.features(X)

        def elbo(mean, cov, expert=expert, C=C):
            kl = 0.5 * sum(
                np.trace(S) + m @ m - 5 - np.linalg.slogdet(S)[1]
                for m, S in zip(mean, cov, strict=True)
            )
            return expert.evaluate(Posterior(mean, cov, kl)).elbo

        for c in range(C):
            # by S: ½(S⁻¹ − I) − ½ V diag(λ) Vᵀ; by m: V(shift − λ Vᵀm) − m
            weight, shift = new.weight[:, c], new.shift[:, c]
            by_S = 0.5 * (np.linalg.inv(q.cov[c]) - np.eye(5) - (V * weight) @ V.T)
            by_m = V @ (shift - weight * (V.T @ q.mean[c])) - q.mean[c]
            for i in range(5):
                h = 1e-5
                up, down = q.mean.copy(), q.mean.copy()
                up[c, i] += h
                down[c, i] -= h
                difference = (elbo(up, q.cov) - elbo(down, q.cov)) / (2 * h)
                assert by_m[i] == pytest.approx(difference, rel=1e-4, abs=1e-3)
                up, down = q.cov.copy(), q.cov.copy()
                up[c, i, i] += h
                down[c, i, i] -= h
                difference = (elbo(q.mean, up) - elbo(q.mean, down)) / (2 * h)
                assert by_S[i, i] == pytest.approx(difference, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("kernel", KERNELS)
def test_with_all_rows_as_inducing_inputs_it_is_the_exact_expert(kernel, rng):
    X, y = rows(rng)
    new = rng.standard_normal((15, 3))
    frame = Frame.of(kernel, THETA, X)
    expert = Expert(frame, Gaussian(np.log(0.3)), X, y)
    _, q = expert.improve(Sites.silent(40, 1), 1e-9, 10)
    mean, var, _ = q.latent(frame.features(new), THETA.signal_variance)
    exact_mean, exact_var, log_p = gp(kernel, X, y, new, THETA.lengthscales, 1.7, 0.3, 1.3)
    np.testing.assert_allclose(mean[:, 0], exact_mean, atol=1e-6)
    np.testing.assert_allclose(var[:, 0], exact_var, atol=1e-6)
    assert expert.evaluate(q).elbo == pytest.approx(log_p, abs=1e-4)
    _, _, without = gp(kernel, X[1:], y[1:], X[:1], THETA.lengthscales, 1.7, 0.3, 1.3)
    assert log_p - without < 5  # a sane set


def test_collapsed_bound_in_closed_form_and_below_the_marginal_likelihood(rng):
    X, y = rows(rng)
    for kernel in KERNELS:
        _, _, log_p = gp(kernel, X, y, X[:1], THETA.lengthscales, 1.7, 0.3, 1.3)
        before = -np.inf
        for M in (1, 5, 15, 40):
            Z = X[:M]
            expert = Expert(Frame.of(kernel, THETA, Z), Gaussian(np.log(0.3)), X, y)
            _, q = expert.improve(Sites.silent(40, 1), 1e-9, 10)
            bound = expert.evaluate(q).elbo
            # Titsias 2009: log N(y | 0, Q + σ²I) − tr(K − Q)/2σ²
            Kuu = naive_kernel(kernel, Z, Z, THETA.lengthscales, 1.7, 1.3)
            Kuf = naive_kernel(kernel, Z, X, THETA.lengthscales, 1.7, 1.3)
            Q = Kuf.T @ np.linalg.solve(Kuu + 1.7e-8 * np.eye(M), Kuf)
            C = Q + 0.3 * np.eye(40)
            naive = (
                -0.5
                * (y @ np.linalg.solve(C, y) + np.linalg.slogdet(C)[1] + 40 * np.log(2 * np.pi))
                - (1.7 * 40 - np.trace(Q)) / 0.6
            )
            assert bound == pytest.approx(naive, abs=1e-5)
            assert before - 1e-6 <= bound <= log_p + 1e-6
            before = bound


def test_natural_gradient_steps_only_gain_and_end_where_the_gradient_is_zero(rng):
    X, _ = rows(rng)
    frame = Frame.of("rbf", THETA, X[:10])
    for likelihood, y in likelihoods(rng):
        expert = Expert(frame, likelihood, X, y)
        sites, values = Sites.silent(40, likelihood.n_latent), []
        for _ in range(8):
            sites, q = expert.improve(sites, 1e-12, 3)
            values.append(expert.evaluate(q).elbo)
        assert np.all(np.diff(values) >= -1e-9 * np.abs(values[-1]))
        # robustmax is not log-concave: its negative weights are cut off, and steps converge slowly
        assert values[-1] - values[-2] < (0.05 if isinstance(likelihood, RobustMax) else 1e-4)
        if not isinstance(likelihood, RobustMax):
            new = expert.evaluate(q).sites
            np.testing.assert_allclose(new.shift, sites.shift, atol=1e-2)


def test_extreme_counts_do_not_overflow(rng):
    X, _ = rows(rng)
    y = np.r_[np.zeros(39), 1e7]
    expert = Expert(Frame.of("rbf", THETA, X[:10]), Poisson(0.0), X, y)
    found = expert.improve(Sites.silent(40, 1), 1e-6, 100)
    assert np.isfinite(expert.evaluate(found[1]).elbo)


def test_held_out_rows_are_predicted_from_the_others(rng):
    X, y = rows(rng, 60)
    mine = committee(rng, Gaussian(np.log(0.3)), y, X, n_inducing=15)
    held = rng.random(60) < 0.25
    held[15:30] = False  # an expert may have none
    with LocalEngine(1, mine.work) as engine:
        found = mine.held_out(THETA, held, engine)
    total = 0.0
    for part in np.array_split(np.arange(60), 4):
        own, new = part[~held[part]], part[held[part]]
        if len(new):  # fifteen rows and as many inducing inputs: the exact GP
            mean, var, _ = gp("rbf", X[own], y[own], X[new], THETA.lengthscales, 1.7, 0.3)
            total += metrics.log_density(y[new], mean, np.sqrt(var + 0.3)).sum()
    assert found == pytest.approx(total, abs=1e-4)


def test_inducing_inputs_are_chosen_by_conditional_variance(rng):
    X, _ = rows(rng)
    K = naive_kernel("rbf", X, X, THETA.lengthscales, 1.0)
    chosen = [0]
    while len(chosen) < 8:
        left = 1 - np.sum(K[chosen] * np.linalg.solve(K[np.ix_(chosen, chosen)], K[chosen]), axis=0)
        left[chosen] = -1
        chosen.append(int(left.argmax()))
    np.testing.assert_array_equal(choose_inducing("rbf", THETA, X, 8), X[chosen])
    assert len(choose_inducing("rbf", THETA, np.repeat(X[:3], 10, axis=0), 8)) == 3
    assert len(choose_inducing("rbf", THETA, np.ones((30, 3)), 8)) == 1


def committee(rng, likelihood, y, X, J=4, n_inducing=8):
    groups = np.array_split(np.arange(len(X)), J)
    with LocalEngine(2, np.ones(9)) as engine:
        return SparseCommittee.from_groups(
            X, y, groups, "rbf", THETA, likelihood, n_inducing, rng, engine
        )


def test_few_experts_share_blocks_and_give_the_same(rng, monkeypatch):
    """One thread or two, experts or blocks of rows among them: the same bits."""
    X, _ = rows(rng, 600)
    y = rng.integers(0, 3, 600).astype(float)
    results = []
    for n_jobs in (1, 2):
        for J in (1, 5):
            mine = committee(np.random.default_rng(0), Softmax(n_classes=3), y, X, J)
            monkeypatch.setattr("healgp.experts.variational.ROWS", 64)
            with LocalEngine(n_jobs, mine.work) as engine:
                value, gradient, by_Z = mine.objective(THETA, mine.likelihood, mine.Z, engine)
                elbo = mine.prepare(engine)
                moments = mine.moments(X[:50], 0, J, engine)
            results.append((J, value, gradient, by_Z, elbo, *moments))
    for a, b in ((0, 2), (1, 3)):
        for left, right in zip(results[a], results[b], strict=True):
            np.testing.assert_array_equal(left, right)


def test_profile_gradient_of_a_committee(rng, monkeypatch):
    """With q at its optimum the gradient at fixed q is that of the maximum over q."""
    monkeypatch.setattr(sparse_module, "_FINAL_STEPS", (1e-12, 100))
    monkeypatch.setattr(sparse_module, "_TRAINING_STEPS", (1e-12, 100))
    X, _ = rows(rng, 80)
    y = rng.poisson(3.0, 80).astype(float)
    mine = committee(rng, Poisson(1.0), y, X)
    with LocalEngine(1, mine.work) as engine:

        def value(theta, likelihood, Z):
            fresh = replace(mine, theta=theta, likelihood=likelihood, Z=Z,
                            sites=Sites.silent(80, 1), _states=[])  # fmt: skip
            return fresh.prepare(engine)

        mine.prepare(engine)
        _, gradient, by_Z = mine.objective(THETA, mine.likelihood, mine.Z, engine)
        h = 1e-4
        for d in range(3):
            ends = []
            for s in (h, -h):
                ell = THETA.lengthscales * np.exp(s * (np.arange(3) == d))
                ends.append(value(replace(THETA, lengthscales=ell), mine.likelihood, mine.Z))
            assert gradient[d] == pytest.approx((ends[0] - ends[1]) / (2 * h), abs=1e-3)
        ends = [value(THETA, Poisson(1.0 + s), mine.Z) for s in (h, -h)]
        assert gradient[4] == pytest.approx((ends[0] - ends[1]) / (2 * h), abs=1e-3)
        Z = mine.Z.copy()
        Z[3, 1] += h
        assert by_Z[3, 1] == pytest.approx(
            (value(THETA, mine.likelihood, Z) - value(THETA, mine.likelihood, mine.Z)) / h, abs=1e-3
        )


def test_posteriors_that_do_not_fit_in_memory_are_made_again(rng, monkeypatch):
    X, y = rows(rng, 80)
    mine = committee(rng, Gaussian(np.log(0.3)), y, X)
    with LocalEngine(1, mine.work) as engine:
        mine.prepare(engine)
        kept = mine.moments(X, 0, 4, engine)
        monkeypatch.setattr(sparse_module, "FACTOR_BYTES", 2 * 4 * 8 * 8 * 8)
        mine.prepare(engine)
        assert [state is None for state in mine._states] == [False, False, True, True]
        for a, b in zip(kept, mine.moments(X, 0, 4, engine), strict=True):
            np.testing.assert_array_equal(a, b)


def test_bernoulli_is_near_scikit_learns_laplace_approximation(rng):
    X = rng.uniform(-2, 2, (80, 2))
    y = (np.sin(2 * X[:, 0]) + X[:, 1] + 0.5 * rng.standard_normal(80) > 0).astype(float)
    new = rng.uniform(-2, 2, (100, 2))
    theta = Hyperparameters(np.array([1.0, 1.0]), 4.0, 1.0)
    # scikit-learn's link is the logistic function, near Φ(f/1.7): the same prior on f/1.7
    peer = GaussianProcessClassifier(
        ConstantKernel(4.0 * 1.7**2, "fixed") * RBF(1.0, "fixed"), optimizer=None
    ).fit(X, y)
    expert = Expert(Frame.of("rbf", theta, X), Bernoulli(), X, y)
    _, q = expert.improve(Sites.silent(80, 1), 1e-8, 50)
    mean, var, _ = q.latent(expert.frame.features(new), 4.0)
    ours, theirs = Bernoulli().probabilities(mean, var), peer.predict_proba(new)
    assert np.abs(ours - theirs).max() < 0.08
    assert np.abs(ours - theirs).mean() < 0.04
    assert np.mean((ours[:, 1] > 0.5) == (theirs[:, 1] > 0.5)) > 0.97
