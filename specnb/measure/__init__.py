"""What speculation does on this machine: acceptance, c and v, and the speedup they predict beside the achieved one.

`acceptance` decodes and counts, `costs` times bare forwards of the models, and `speed` does both and decodes, with
and without drafts, to compare. The unit of c and v is a bare forward of the target, one token per request: the model
and its cache alone. What the decoding loop adds is measured apart.

Whatever takes long shows its progress, and after Ctrl-C returns what had been measured.
"""

from specnb.measure.accepting import Acceptance, acceptance
from specnb.measure.speeds import Measurement, speed
from specnb.measure.timing import Costs, costs

__all__ = ["Acceptance", "Costs", "Measurement", "acceptance", "costs", "speed"]
