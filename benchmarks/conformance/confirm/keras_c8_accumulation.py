"""A `LearningRateSchedule` is called with the number of batches, not of steps, where the optimizer accumulates; Adam's
correction counts steps (keras-team/keras#19998). A schedule whose own steps are batches, as `decay_steps` times
`gradient_accumulation_steps`, avoids it.
"""

import keras_c3_c4_c5_c7 as script  # first: it chooses the backend
import tiny

optimizer = script.keras.optimizers.SGD(
    script.keras.optimizers.schedules.PiecewiseConstantDecay([2], [1.0, 0.1]), gradient_accumulation_steps=2
)
script.fitted(*[tiny.FOUR] * 4, optimizer=optimizer)
told = float(optimizer.learning_rate)
tiny.answer({"c8": lambda: ("rate after two steps of two batches each, 0.1 once two steps are exceeded", told, 1.0)})
