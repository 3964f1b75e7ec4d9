"""Twelve posteriors of published data as NumPyro programs: those of the benchmark `real_models`.

Data are those of the sources that each program names. All priors are proper, so that the evidence
exists; where a source has flat or very wide ones, they are narrower here.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp

from benchmarks import _eight_schools
from models import lotka_volterra, radiata_pine


class RealModel(NamedTuple):
    """A NumPyro program, the arguments it is called with, and where its chains start."""

    program: Callable[..., None]
    data: Mapping[str, Any]
    start: Mapping[str, Any] | None = None


def schools(effects: np.ndarray, errors: np.ndarray) -> None:
    """Coaching in eight schools (Rubin, 1981), non-centred."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", len(effects)):
        eta = numpyro.sample("eta", dist.Normal(0, 1))
        theta = numpyro.deterministic("theta", mu + tau * eta)
        numpyro.sample("y", dist.Normal(theta, errors), obs=effects)


def stacks(x: np.ndarray, y: np.ndarray) -> None:
    """Loss of an ammonia plant (Brownlee, 1965), with errors of Student's t₄."""
    design = (x - x.mean(0)) / x.std(0)
    alpha = numpyro.sample("alpha", dist.Normal(0, 50))
    with numpyro.plate("predictor", 3):
        beta = numpyro.sample("beta", dist.Normal(0, 20))
    sigma = numpyro.sample("sigma", dist.HalfNormal(10))
    numpyro.sample("y", dist.StudentT(4, alpha + design @ beta, sigma), obs=y)


def dugongs(age: np.ndarray, length: np.ndarray) -> None:
    """Length of sea cows against their age (Carlin & Gelfand, 1991): growth to an asymptote."""
    alpha = numpyro.sample("alpha", dist.Normal(2.5, 1))
    beta = numpyro.sample("beta", dist.LogNormal(0, 1))
    gamma = numpyro.sample("gamma", dist.Uniform(0.5, 1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(alpha - beta * gamma**age, sigma), obs=length)


def beetles(dose: np.ndarray, exposed: np.ndarray, killed: np.ndarray) -> None:
    """Beetles killed by carbon disulphide (Bliss, 1935): logistic dose and response."""
    intercept = numpyro.sample("intercept", dist.Normal(0, 10))
    slope = numpyro.sample("slope", dist.Normal(0, 50))
    numpyro.deterministic("ld50", dose.mean() - intercept / slope)
    logits = intercept + slope * (dose - dose.mean())
    numpyro.sample("y", dist.Binomial(exposed, logits=logits), obs=killed)


def pumps(hours: np.ndarray, failures: np.ndarray) -> None:
    """Failures of ten pumps of a power plant (Gaver & O'Muircheartaigh, 1987)."""
    shape = numpyro.sample("shape", dist.Exponential(1))
    rate = numpyro.sample("rate", dist.Gamma(0.1, 1))
    with numpyro.plate("pump", len(hours)):
        theta = numpyro.sample("theta", dist.Gamma(shape, rate))
        numpyro.sample("y", dist.Poisson(theta * hours), obs=failures)


def surgical(operations: np.ndarray, deaths: np.ndarray) -> None:
    """Deaths in cardiac surgery of babies in twelve hospitals (Spiegelhalter et al., BUGS)."""
    mu = numpyro.sample("mu", dist.Normal(0, 3))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("hospital", len(deaths)):
        z = numpyro.sample("z", dist.Normal(0, 1))
        logits = mu + sigma * z
        numpyro.deterministic("p", 1 / (1 + jnp.exp(-logits)))
        numpyro.sample("y", dist.Binomial(operations, logits=logits), obs=deaths)


def seeds(seed: np.ndarray, root: np.ndarray, planted: np.ndarray, grown: np.ndarray) -> None:
    """Germination on 21 plates (Crowder, 1978): logistic regression with effects of plates."""
    with numpyro.plate("coefficient", 4):
        alpha = numpyro.sample("alpha", dist.Normal(0, 3))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("plate", len(planted)):
        z = numpyro.sample("z", dist.Normal(0, 1))
        fixed = alpha[0] + alpha[1] * seed + alpha[2] * root + alpha[3] * seed * root
        numpyro.sample("y", dist.Binomial(planted, logits=fixed + sigma * z), obs=grown)


def rats(day: np.ndarray, weight: np.ndarray) -> None:
    """Weights of thirty young rats in five weeks (Gelfand et al., 1990): a line for each."""
    with numpyro.plate("term", 2):
        mu = numpyro.sample("mu", dist.Normal(jnp.array([240.0, 6.0]), jnp.array([50.0, 3.0])))
        tau = numpyro.sample("tau", dist.HalfNormal(jnp.array([30.0, 2.0])))
        with numpyro.plate("rat", len(weight)):
            line = numpyro.sample("line", dist.Normal(mu, tau))
    sigma = numpyro.sample("sigma", dist.HalfNormal(20))
    mean = line[:, :1] + line[:, 1:] * (day - day.mean())
    numpyro.sample("y", dist.Normal(mean, sigma), obs=weight)


def nile(flow: np.ndarray) -> None:
    """Annual flow of the Nile, 1871–1970 (Cobb, 1978): a random walk and noise, centred."""
    start = numpyro.sample("start", dist.Normal(1_000, 200))
    tau = numpyro.sample("tau", dist.HalfNormal(100))
    sigma = numpyro.sample("sigma", dist.HalfNormal(200))
    with numpyro.plate("year", len(flow)):
        step = numpyro.sample("step", dist.Normal(0, 1))
        level = numpyro.deterministic("level", start + tau * jnp.cumsum(step))
        numpyro.sample("y", dist.Normal(level, sigma), obs=flow)


def coal(disasters: np.ndarray) -> None:
    """Disasters in British coal mines by year, 1851–1962 (Jarrett, 1979): a rate that changes once.

    The year of the change is summed over.
    """
    early = numpyro.sample("early", dist.Exponential(1))
    late = numpyro.sample("late", dist.Exponential(1))
    before = jnp.cumsum(dist.Poisson(early).log_prob(disasters))
    after = dist.Poisson(late).log_prob(disasters)
    each = before + after.sum() - jnp.cumsum(after)  # by the last year of the early rate
    numpyro.factor("change", logsumexp(each) - jnp.log(len(disasters)))


LOSS = """
80 27 89 42, 80 27 88 37, 75 25 90 37, 62 24 87 28, 62 22 87 18, 62 23 87 18, 62 24 93 19,
62 24 93 20, 58 23 87 15, 58 18 80 14, 58 18 89 14, 58 17 88 13, 58 18 82 11, 58 19 93 12,
50 18 89 8, 50 18 86 7, 50 19 72 8, 50 19 79 8, 50 20 80 9, 56 20 82 15, 70 20 91 15
"""
"""Air flow, temperature of the water, concentration of the acid, and loss, on 21 days."""

AGE = """
1 1.5 1.5 1.5 2.5 4 5 5 7 8 8.5 9 9.5 9.5 10 12 12 13 13 14.5 15.5 15.5 16.5 17 22.5 29 31.5
"""
LENGTH = """
1.80 1.85 1.87 1.77 2.02 2.27 2.15 2.26 2.47 2.19 2.26 2.40 2.39 2.41 2.50 2.32 2.32 2.43 2.47
2.56 2.65 2.47 2.64 2.56 2.70 2.72 2.57
"""
DOSE = "1.6907 1.7242 1.7552 1.7842 1.8113 1.8369 1.8610 1.8839"
EXPOSED, KILLED = "59 60 62 56 63 59 62 60", "6 13 18 28 52 53 61 60"
HOURS = "94.3 15.7 62.9 126 5.24 31.4 1.05 1.05 2.1 10.5"
FAILURES = "5 1 5 14 3 19 1 1 4 22"
OPERATIONS = "47 148 119 810 211 196 148 215 207 97 256 360"
DEATHS = "0 18 8 46 8 13 9 31 14 8 29 24"
PLANTED = "39 62 81 51 39 6 74 72 51 79 13 16 30 28 45 4 12 41 30 51 7"
GROWN = "10 23 23 26 17 5 53 55 32 46 10 8 10 8 23 0 3 22 15 32 3"
WEIGHT = """
151 199 246 283 320, 145 199 249 293 354, 147 214 263 312 328, 155 200 237 272 297,
135 188 230 280 323, 159 210 252 298 331, 141 189 231 275 305, 159 201 248 297 338,
177 236 285 350 376, 134 182 220 260 296, 160 208 261 313 352, 143 188 220 273 314,
154 200 244 289 325, 171 221 270 326 358, 163 216 242 281 312, 160 207 248 288 324,
142 187 234 280 316, 156 203 243 283 317, 157 212 259 307 336, 152 203 246 286 321,
154 205 253 298 334, 139 190 225 267 302, 146 191 229 272 302, 157 211 250 285 323,
132 185 237 286 331, 160 207 257 303 345, 169 216 261 295 333, 157 205 248 289 316,
137 180 219 258 291, 153 200 244 286 324
"""
FLOW = """
1120 1160 963 1210 1160 1160 813 1230 1370 1140 995 935 1110 994 1020 960 1180 799 958 1140
1100 1210 1150 1250 1260 1220 1030 1100 774 840 874 694 940 833 701 916 692 1020 1050 969
831 726 456 824 702 1120 1100 832 764 821 768 845 864 862 698 845 744 796 1040 759
781 865 845 944 984 897 822 1010 771 676 649 846 812 742 801 1040 860 874 848 890
744 749 838 1050 918 986 797 923 975 815 1020 906 901 1170 912 746 919 718 714 740
"""
DISASTERS = """
4 5 4 0 1 4 3 4 0 6 3 3 4 0 2 6 3 3 5 4 5 3 1 4 4 1 5 5 3 4 2 5 2 2 3 4 2 1 3 2 2 1 1 1 1 3 0 0
1 0 1 1 0 0 3 1 0 3 2 2 0 1 1 1 0 1 0 1 0 0 0 2 1 0 0 0 1 1 0 2 3 3 1 1 2 1 1 1 1 2 4 2 0 0 1 4
0 0 0 1 0 0 0 0 0 1 0 0 1 0 1 0
"""


def numbers(text: str) -> np.ndarray:
    """Return the numbers of a text, a matrix where commas divide its rows."""
    rows = [np.array(row.split(), float) for row in text.split(",")]
    return np.stack(rows) if len(rows) > 1 else rows[0]


def whole(text: str) -> np.ndarray:
    """Return the counts of a text."""
    return numbers(text).astype(int)


MODELS: dict[str, RealModel] = {
    "beetles": RealModel(
        beetles, {"dose": numbers(DOSE), "exposed": whole(EXPOSED), "killed": whole(KILLED)}
    ),
    "coal": RealModel(coal, {"disasters": whole(DISASTERS)}),
    "dugongs": RealModel(dugongs, {"age": numbers(AGE), "length": numbers(LENGTH)}),
    "radiata": RealModel(radiata_pine.model, radiata_pine.data()),
    "stacks": RealModel(stacks, {"x": numbers(LOSS)[:, :3], "y": numbers(LOSS)[:, 3]}),
    "lynx": RealModel(
        lotka_volterra.model, lotka_volterra.data("stan"), lotka_volterra.init("stan")
    ),
    "schools": RealModel(
        schools, {"effects": _eight_schools.EFFECTS, "errors": _eight_schools.ERRORS}
    ),
    "pumps": RealModel(pumps, {"hours": numbers(HOURS), "failures": whole(FAILURES)}),
    "surgical": RealModel(surgical, {"operations": whole(OPERATIONS), "deaths": whole(DEATHS)}),
    "seeds": RealModel(
        seeds,
        {
            "seed": np.repeat([0, 1], [11, 10]),
            "root": np.repeat([0, 1, 0, 1], [5, 6, 5, 5]),
            "planted": whole(PLANTED),
            "grown": whole(GROWN),
        },
    ),
    "rats": RealModel(rats, {"day": np.arange(8.0, 37.0, 7.0), "weight": numbers(WEIGHT)}),
    "nile": RealModel(nile, {"flow": numbers(FLOW)}),
}
"""By their number of parameters, from 2 to 103."""
