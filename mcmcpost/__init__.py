"""Post-processing of MCMC traces: expectations with smaller Monte Carlo errors, model evidence,
reports.

The public names are listed in ``__init__.pyi`` and imported on first use, so that importing the
package costs next to nothing.
"""

import lazy_loader

# read from here by the build, so that a clone needs no installation to be imported
__version__ = "0.2.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
