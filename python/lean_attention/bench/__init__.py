"""Measurements that can be trusted: several contenders side by side, interleaved.

* ``decode.py``         whole models, step by step
* ``kernel.py``         one attention node against others, and a plain read of the same bytes
* ``kernel_config.py``  the step: sizes, types, and how many caches to rotate over
* ``kernel_data.py``    its tensors, and the exact result
* ``contenders.py``     our operator, the stock one, PyTorch
* ``kernel_report.py``  the result as a document and as a table
* ``roofline.py``       the plain read
* ``machine.py``        what the machine is
"""

from lean_attention.bench.decode import DecodeTimes, time_decode
from lean_attention.bench.kernel import KernelTimes, time_kernel
from lean_attention.bench.kernel_config import KernelConfig

__all__ = ["DecodeTimes", "KernelConfig", "KernelTimes", "time_decode", "time_kernel"]
