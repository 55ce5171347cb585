"""What a chip allows at most, predicted from its data sheet and the shapes of the models.

`ModelShape` counts the operations and bytes of a forward, `Chip` turns them into a time, and `Speculation` into
v, c, speedup and memory. Everything here is a prediction of the roofline model (Williams et al. 2009): a part of a
forward takes its operations over the peak or its bytes over the bandwidth, whichever is longer. Launches, the loop
and imperfect kernels come on top, and have to be measured.
"""

from specnb.roofline.chips import Chip
from specnb.roofline.shapes import Forward, ModelShape, Precision, Work
from specnb.roofline.speculation import Speculation
from specnb.roofline.verdicts import verdict_bytes, verdict_seconds

__all__ = ["Chip", "Forward", "ModelShape", "Precision", "Speculation", "Work", "verdict_bytes", "verdict_seconds"]
