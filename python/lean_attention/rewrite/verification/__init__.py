"""Whether a rewritten model computes what its source computes, seen by running both.

* ``verify.py``       the three models one after another, and what is said of each output
* ``session.py``      one of them over all scenarios, in ONNX Runtime's CPU provider
* ``scenarios.py``    prompts, decode steps, lengths and batches
* ``feeds.py``        random inputs
* ``memory.py``       whether there is enough of it
* ``interface.py``    what a model's inputs and outputs are to its attention
* ``trace.py``        values followed back through a graph
* ``disturbance.py``  the source with attention that errs by a few roundings
* ``comparison.py``   differences and tolerances
* ``result.py``       what was found
"""
