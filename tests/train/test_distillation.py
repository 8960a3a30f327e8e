"""A teacher is any callable, sees the images that the student sees, and teaches one head or the second of two."""

import numpy as np
import pytest

from autograd import Tensor, ops
from minicait.data import Augmentation, Shapes, training
from minicait.data.loader import Loader
from minicait.models.cait import CaiT
from minicait.train import Recipe, Trainer
from tests.models.small_models import SMALL_MODELS
from tests.train.helpers import SMALL, small, some_batches


class Looking(CaiT):
    """A student that remembers every image it gets."""

    def outputs(self, images):
        self.seen.extend(np.asarray(image).tobytes() for image in Tensor(images).numpy())
        return super().outputs(images)


def test_a_teacher_sees_what_the_student_sees():
    """The very pixels of every batch, cropped, erased and mixed."""
    recipe = Recipe(batch_size=8, mixup=0.8, cutmix=1.0, distillation="hard",
                    augmentation=Augmentation("resized", flip=0.5, rand_augment=9, erasing=1.0))  # fmt: skip
    taught, student, steps = [], Looking(**SMALL), []
    student.seen = []

    def teacher(images):
        taught.extend(image.tobytes() for image in images)
        return np.zeros((len(images), 10), np.float32)

    def after_batch(_):
        steps.append((set(taught), set(student.seen)))
        taught.clear()
        student.seen.clear()

    plain = Loader(Shapes(24, 16), 8, training=True, transform=training(recipe.augmentation, 16))
    trainer = Trainer(student, recipe, threads=1, processes=False, teacher=teacher)
    trainer.fit(plain, Loader(Shapes(8, 16, seed=1), 8), after_batch=after_batch)
    assert [len(by_teacher) for by_teacher, _ in steps] == [8] * 3
    assert steps[0][0] < steps[0][1]  # the first step also looks for coupled samples, with noise
    for by_teacher, by_student in steps[1:]:
        assert by_teacher == by_student
    unmixed = {image.tobytes() for batch in plain.epoch(0) for image in batch.images}
    assert not unmixed & set().union(*(by_teacher for by_teacher, _ in steps))


@pytest.mark.parametrize("teacher", [
    lambda images: np.eye(10, dtype=np.float32)[[3] * len(images)],
    lambda images: Tensor(np.eye(10, dtype=np.float32)[[3] * len(images)]),
    small(seed=5).eval(),
    SMALL_MODELS["deit-distilled"](seed=5).eval(),
], ids=["array", "Tensor", "model", "model of another family"])  # fmt: skip
@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize("student", ["cait", "deit-distilled"])
def test_any_callable_teaches_any_student(teacher, kind, student):
    """One head learns from labels and teacher; of two, the second from the teacher."""
    images, labels = some_batches()[0]
    recipe = Recipe(distillation=kind, distillation_weight=0.3, temperature=2.0)
    model = SMALL_MODELS[student]()
    outputs, logits = model.train().outputs(images), Tensor(teacher(images)).numpy()
    learned = outputs.logits if outputs.distilled is None else outputs.distilled
    by_teacher = ops.cross_entropy(learned, logits.argmax(1))
    if kind == "soft":
        by_teacher = 4 * ops.kl_div(ops.log_softmax(learned / 2), ops.softmax(logits / 2))
    want = 0.7 * ops.cross_entropy(outputs.logits, labels).item() + 0.3 * by_teacher.item()
    assert Trainer(model, recipe, threads=1, teacher=teacher).step(images, labels) == pytest.approx(want, rel=1e-5)
