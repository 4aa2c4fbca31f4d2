"""Exports the models of ``models/`` through onnxruntime-genai's model builder.

| file | role |
|---|---|
| catalogue.py | reads ``models/*.toml`` |
| plan.py | settles the sizes of one export, and whether they fit this machine |
| exporter.py | ``export_model``: checks, runs the worker, renames its folder into place |
| wheel.py | finds or fetches the file of real weights |
| worker.py | the child process in which everything heavy is imported |
| random_weights.py, real_weights.py | the Hugging Face folder that the builder reads |
| tokenizer.py | the tokenizer of random models; tokenizer files for every client |
| builder.py | the call of the model builder, and what other clients need beside it |
"""

from lean_attention.export.catalogue import ModelSpec, load_model, model_names
from lean_attention.export.exporter import export_model

__all__ = ["ModelSpec", "export_model", "load_model", "model_names"]
