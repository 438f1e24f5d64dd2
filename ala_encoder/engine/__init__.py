"""The only folder that knows DeepSpeed.

`processes`: ranks and devices, from start to end. `configuration`: DeepSpeed's keys out of the
settings. `engine`: a model under DeepSpeed, with exact gradients and full weights.
"""

from ala_encoder.engine.configuration import choose_precision, deepspeed_config
from ala_encoder.engine.engine import Engine, Update, read_data
from ala_encoder.engine.processes import device, has_cuda, start, stop

__all__ = [
    "Engine",
    "Update",
    "choose_precision",
    "deepspeed_config",
    "device",
    "has_cuda",
    "read_data",
    "start",
    "stop",
]
