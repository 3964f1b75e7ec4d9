"""What a person does first with an installed wheel, from an empty folder: run by the Python of an
empty environment."""

import importlib
import pkgutil
import subprocess
import sys
from importlib.metadata import files, metadata
from pathlib import Path

import mcmcpost as mp
from mcmcpost.examples import named_model

package = Path(mp.__file__).parent
assert "site-packages" in package.parts, f"{package} is that of a clone"
names = {str(file) for file in files("mcmcpost") or ()}
assert {
    "mcmcpost/py.typed",
    "mcmcpost/__init__.pyi",
    "mcmcpost/app/report.html.j2",
    "mcmcpost/app/report.js",
} <= names
assert not [
    name for name in names if name.startswith(("benchmarks/", "models/", "tests/", "docs/"))
]
assert metadata("mcmcpost")["Version"] == mp.__version__

# Every module, with what the wheel requires alone: none of the extras is needed before it is used.
for module in pkgutil.walk_packages([str(package)], "mcmcpost."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)

summary = mp.summary(mp.load_example("lotka_volterra"), method="zv2")
assert (summary["gain"] > 10).all(), summary.to_string()
assert named_model(Path("lotka-volterra")).parent == package / "examples"
command = [
    str(Path(sys.executable).with_name("mcmcpost")),
    "reduce",
    "radiata-pine",
    "--method",
    "zv1",
]
done = subprocess.run(
    [*command, "--draws", "100", "--chains", "2"], capture_output=True, text=True, check=False
)
assert done.returncode == 0, done.stderr
assert "mean_cv" in done.stdout, done.stdout
print(f"mcmcpost {mp.__version__}: smoke test passed")
